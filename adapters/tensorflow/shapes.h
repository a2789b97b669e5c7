// What TensorFlow may know of results before they are there: shape functions for operations.
#pragma once

#include "adapters/tensorflow/tf_api.h"

namespace sirtaki_tensorflow {

// Every output has the shape of the input of its number.
void shapes_as_given(TfShapeContext* context, TfStatus* status);
// The same but for the first dimension, which is not known.
void shapes_of_rows(TfShapeContext* context, TfStatus* status);
// Of an alltoall: rows, and a vector of counts.
void shapes_of_exchange(TfShapeContext* context, TfStatus* status);
// Of one step of gradients: a scalar; as the first input; as all inputs but the last.
void shapes_of_number(TfShapeContext* context, TfStatus* status);
void shapes_of_ready(TfShapeContext* context, TfStatus* status);
void shapes_of_finish(TfShapeContext* context, TfStatus* status);
// No output.
void shapes_of_nothing(TfShapeContext* context, TfStatus* status);

}  // namespace sirtaki_tensorflow
