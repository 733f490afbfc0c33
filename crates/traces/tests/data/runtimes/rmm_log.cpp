// Writes a log of RMM's logging_resource_adaptor without a GPU: the memory below comes from malloc.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <thread>
#include <vector>

int main(int, char** argv)
{
  auto allocate = [](std::size_t bytes, cuda::stream_ref, void*) -> void* {
    if (bytes > (std::size_t{1} << 30)) { throw std::bad_alloc{}; }
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  };
  auto deallocate = [](void* pointer, std::size_t, cuda::stream_ref, void*) { std::free(pointer); };
  rmm::mr::callback_memory_resource host{allocate, deallocate};
  rmm::mr::statistics_resource_adaptor counted{host};
  rmm::mr::logging_resource_adaptor logged{counted, argv[1]};

  auto const stream = cuda::stream_ref{cudaStream_t{}};
  auto work = [&](int rounds) {
    std::vector<void*> kept;
    for (int i = 1; i <= rounds; i++) {
      auto* scratch = logged.allocate(stream, 1000 * i, 256);
      kept.push_back(logged.allocate(stream, 4096, 256));
      logged.deallocate(stream, scratch, 1000 * i, 256);
    }
    for (auto* pointer : kept) { logged.deallocate(stream, pointer, 4096, 256); }
  };
  auto* table = logged.allocate(stream, 1 << 20, 256);
  work(20);
  std::thread{work, 10}.join();
  try {
    logged.allocate(stream, std::size_t{1} << 40, 256);
  } catch (std::bad_alloc const&) {
  }
  logged.deallocate(stream, table, 1 << 20, 256);
  auto* last = logged.allocate(stream, 5000, 256);
  logged.flush();
  std::printf("peak %ld current %ld\n", counted.get_bytes_counter().peak, counted.get_bytes_counter().value);
  logged.deallocate(stream, last, 5000, 256);
}
