#include "adapters/tensorflow/shapes.h"

#include <memory>

namespace sirtaki_tensorflow {
namespace {

struct Free {
  void operator()(TfShape* shape) const { tf().TF_DeleteShapeHandle(shape); }
};
using Shape = std::unique_ptr<TfShape, Free>;

constexpr auto kUnknown = static_cast<std::size_t>(-1);

Shape make_shape() {
  return Shape(tf().TF_NewShapeHandle());
}

bool ok(const TfStatus* status) {
  return tf().TF_GetCode(status) == kTfOk;
}

// Gives output `index` the shape of input `index`, with the first dimension unknown if there is one.
void rows_of(TfShapeContext* context, int index, TfStatus* status) {
  const Shape given = make_shape();
  tf().TF_ShapeInferenceContextGetInput(context, index, given.get(), status);
  if (!ok(status)) {
    return;
  }
  const bool known = tf().TF_ShapeInferenceContextRankKnown(context, given.get()) != 0;
  const std::int64_t rank = known ? tf().TF_ShapeInferenceContextRank(context, given.get()) : 0;
  if (rank < 1) {
    tf().TF_ShapeInferenceContextSetOutput(context, index, given.get(), status);
    return;
  }
  const Shape rest = make_shape();
  const Shape result = make_shape();
  const Shape first(tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf().TF_ShapeInferenceContextSubshape(context, given.get(), 1, rank, rest.get(), status);
  if (ok(status)) {
    tf().TF_ShapeInferenceContextConcatenateShapes(context, first.get(), rest.get(), result.get(), status);
  }
  if (ok(status)) {
    tf().TF_ShapeInferenceContextSetOutput(context, index, result.get(), status);
  }
}

int inputs(TfShapeContext* context) {
  return static_cast<int>(tf().TF_ShapeInferenceContextNumInputs(context));
}

// Gives the first `count` outputs the shapes of the inputs with the same indices.
void pass_on(TfShapeContext* context, int count, TfStatus* status) {
  const Shape shape = make_shape();
  for (int i = 0; i < count && ok(status); ++i) {
    tf().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (ok(status)) {
      tf().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    }
  }
}

}  // namespace

void shapes_as_given(TfShapeContext* context, TfStatus* status) {
  pass_on(context, inputs(context), status);
}

void shapes_of_number(TfShapeContext* context, TfStatus* status) {
  const Shape scalar(tf().TF_ShapeInferenceContextScalar(context));
  tf().TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void shapes_of_ready(TfShapeContext* context, TfStatus* status) {
  pass_on(context, 1, status);
}

void shapes_of_finish(TfShapeContext* context, TfStatus* status) {
  pass_on(context, inputs(context) - 1, status);
}

void shapes_of_rows(TfShapeContext* context, TfStatus* status) {
  for (int i = 0; i < inputs(context) && ok(status); ++i) {
    rows_of(context, i, status);
  }
}

void shapes_of_exchange(TfShapeContext* context, TfStatus* status) {
  rows_of(context, 0, status);
  if (ok(status)) {
    const Shape counts(tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
    tf().TF_ShapeInferenceContextSetOutput(context, 1, counts.get(), status);
  }
}

void shapes_of_nothing(TfShapeContext* /*context*/, TfStatus* /*status*/) {}

}  // namespace sirtaki_tensorflow
