// Types of TensorFlow's C interface, declared here so that the library compiles without TensorFlow.
//
// Pointers to these types belong to TensorFlow. Values of enumerations are part of its stable interface.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki_tensorflow {

struct TfStatus;
struct TfTensor;
struct TfOpBuilder;
struct TfKernelBuilder;
struct TfConstruction;
struct TfContext;
struct TfShapeContext;
struct TfShape;
struct TfDone;

enum TfCode : int {
  kTfOk = 0,
  kTfInvalidArgument = 3,
  kTfFailedPrecondition = 9,
  kTfAborted = 10,
  kTfUnimplemented = 12,
};

enum TfType : int {
  kTfFloat = 1,
  kTfDouble = 2,
  kTfInt32 = 3,
  kTfUint8 = 4,
  kTfInt16 = 5,
  kTfInt8 = 6,
  kTfInt64 = 9,
  kTfBool = 10,
  kTfBfloat16 = 14,
  kTfUint16 = 17,
  kTfHalf = 19,
};

}  // namespace sirtaki_tensorflow
