#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "parallel.h"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // its macros are empty without AddressSanitizer
#else
#define ASAN_POISON_MEMORY_REGION(address, size)
#define ASAN_UNPOISON_MEMORY_REGION(address, size)
#endif

namespace headrace {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{4} << 20;  // unit of checksums, so that they do not depend on the number of threads

uint64_t checksum_piece(uint8_t* destination, const uint8_t* source, size_t bytes) {
  uint64_t lanes[8];
  for (int i = 0; i < 8; i++) lanes[i] = 0x9e3779b97f4a7c15u + i;
  for (size_t at = 0; at + 64 <= bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, source + at, 64);
    if (destination) std::memcpy(destination + at, words, 64);
    for (int i = 0; i < 8; i++) lanes[i] = (lanes[i] ^ words[i]) * 0x100000001b3u;
  }
  uint64_t hash = bytes;
  for (uint64_t lane : lanes) hash = (hash ^ (lane >> 29) ^ lane) * 0xff51afd7ed558ccdu;
  for (size_t at = bytes / 64 * 64; at < bytes; at++) {
    if (destination) destination[at] = source[at];
    hash = (hash ^ source[at]) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

Arena::Arena(size_t bytes) : size_(std::max<size_t>(bytes, 1)) {
  // One extra huge page, so that the data can start on a huge page boundary.
  void* raw = mmap(nullptr, size_ + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  auto start = reinterpret_cast<uintptr_t>(raw);
  uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(raw, aligned - start);
  uintptr_t end = start + size_ + kHugePage, page_end = (aligned + size_ + 4095) / 4096 * 4096;
  if (end > page_end) munmap(reinterpret_cast<void*>(page_end), end - page_end);
  data_ = reinterpret_cast<uint8_t*>(aligned);
#ifdef MADV_HUGEPAGE
  madvise(data_, size_, MADV_HUGEPAGE);  // best effort: without huge pages everything works, a few per cent slower
#endif
}

Arena Arena::map(const std::string& path, size_t offset, size_t bytes, bool writable) {
  const int file = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file < 0) throw std::system_error(errno, std::generic_category(), path);
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* raw = mmap(nullptr, bytes, protection, MAP_SHARED, file, static_cast<off_t>(offset));
  const int error = errno;
  close(file);
  if (raw == MAP_FAILED) throw std::system_error(error, std::generic_category(), path);
  Arena arena;
  arena.data_ = static_cast<uint8_t*>(raw);
  arena.size_ = bytes;
  return arena;
}

void Arena::populate(int num_threads) const {
  const size_t num_pieces = (size_ + kPiece - 1) / kPiece;
  parallel_for(num_pieces, num_threads, [&](size_t piece) {
    const size_t start = piece * kPiece, end = std::min(start + kPiece, size_);
#ifdef MADV_POPULATE_READ
    if (madvise(data_ + start, end - start, MADV_POPULATE_READ) == 0) return;
#endif
    for (size_t at = start; at < end; at += 4096) static_cast<void>(*const_cast<const volatile uint8_t*>(data_ + at));
  });
}

Arena::~Arena() {
  if (!data_) return;
  ASAN_UNPOISON_MEMORY_REGION(data_, size_);
  munmap(data_, (size_ + 4095) / 4096 * 4096);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void forbid_access([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t bytes) {
  ASAN_POISON_MEMORY_REGION(data, bytes);
}

uint64_t copy_and_checksum(uint8_t* destination, const uint8_t* source, size_t bytes, int num_threads) {
  size_t num_pieces = (bytes + kPiece - 1) / kPiece;
  std::vector<uint64_t> hashes(num_pieces);
  parallel_for(num_pieces, num_threads, [&](size_t piece) {
    size_t start = piece * kPiece;
    uint8_t* to = destination ? destination + start : nullptr;
    hashes[piece] = checksum_piece(to, source + start, std::min(kPiece, bytes - start));
  });
  return checksum_piece(nullptr, reinterpret_cast<const uint8_t*>(hashes.data()), num_pieces * sizeof(uint64_t));
}

}  // namespace headrace
