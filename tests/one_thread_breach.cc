// A program that is declared ONE_THREAD (cmake/SirtakiTargets.cmake) and is not: it has to be told so.
#include <thread>

int main() {
  std::thread([] {}).join();
  return 0;
}
