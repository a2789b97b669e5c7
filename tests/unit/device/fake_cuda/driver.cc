// A library that loads like the CUDA driver, with one context; it counts the events that are recorded behind all work
// of that context. Threads: one.
namespace {

int context = 0;
int recorded = 0;
int answer = 0;

}  // namespace

#define SRT_EXPORT extern "C" __attribute__((visibility("default")))

SRT_EXPORT int cuCtxGetCurrent(void** current) {
  *current = &context;
  return 0;
}
SRT_EXPORT int cuCtxRecordEvent(void* of, void* /*event*/) {
  recorded += of == &context ? 1 : 0;
  return answer;
}

// Returns the number of recorded events, and makes later ones return `next`.
SRT_EXPORT int fake_driver_recorded(int next) {
  answer = next;
  return recorded;
}
