// Shape functions of operations: shapes of results that TensorFlow may know before they exist.
#pragma once

#include "adapters/tensorflow/tf_api.h"

namespace sirtaki_tensorflow {

// Every output has the shape of the input with the same index.
void shapes_as_given(TfShapeContext* context, TfStatus* status);
// Every output has the shape of the input with the same index, except for an unknown first dimension.
void shapes_of_rows(TfShapeContext* context, TfStatus* status);
// Outputs of an alltoall: rows, and a vector of counts.
void shapes_of_exchange(TfShapeContext* context, TfStatus* status);
// Outputs of the operations of a step: a scalar; the shape of the first input; the shapes of all inputs but the last.
void shapes_of_number(TfShapeContext* context, TfStatus* status);
void shapes_of_ready(TfShapeContext* context, TfStatus* status);
void shapes_of_finish(TfShapeContext* context, TfStatus* status);
// The operation has no output.
void shapes_of_nothing(TfShapeContext* context, TfStatus* status);

}  // namespace sirtaki_tensorflow
