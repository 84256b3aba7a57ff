// Large blocks of memory that live as long as a runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace {

// Anonymous zeroed memory, in huge pages if the system provides them, or a part of a file. Pages are allocated, or read
// from disk, on first touch.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes);  // throws std::bad_alloc
  // Maps `bytes` bytes of a file from `offset` on, a multiple of the page size. What is written to a writable arena
  // reaches the file; a write to any other is a segmentation fault. Throws std::system_error.
  static Arena map(const std::string& path, size_t offset, size_t bytes, bool writable);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Reads a mapped file into the page cache and maps all of its pages.
  void populate(int num_threads) const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Lets AddressSanitizer report accesses to memory of an arena, until the arena ends; does nothing in other builds.
void forbid_access(const uint8_t* data, size_t bytes);

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kRedZoneBytes = 64;
#elif defined(__has_feature)
constexpr size_t kRedZoneBytes = __has_feature(address_sanitizer) ? 64 : 0;
#else
constexpr size_t kRedZoneBytes = 0;
#endif

// Allocates aligned pieces of an arena; with a null base it only counts bytes.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}

  template <class T>
  T* take(size_t count) {
    const size_t first = used_, end = first + count * sizeof(T);
    used_ = (end + 63) / 64 * 64 + kRedZoneBytes;
    if (!base_) return nullptr;
    if (kRedZoneBytes > 0) forbid_access(base_ + end, used_ - end);
    return reinterpret_cast<T*>(base_ + first);
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// Copies on `num_threads` threads and returns a checksum; with a null `destination` it only computes the checksum.
uint64_t copy_and_checksum(uint8_t* destination, const uint8_t* source, size_t bytes, int num_threads);

}  // namespace headrace
