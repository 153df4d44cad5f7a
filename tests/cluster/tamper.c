// Preloaded into ranks, makes the disk of a host slow and its clock wrong while a file says so:
//   $FLOE_TAMPER/slow.HOST    milliseconds that a write to a regular file and an fsync take longer
//   $FLOE_TAMPER/clock.HOST   seconds by which the time of day is ahead
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long asked(const char* kind) {
  static __thread int busy = 0;
  const char* folder = getenv("FLOE_TAMPER");
  if (!folder || busy) return 0;
  busy = 1;
  char host[64] = "", path[4096], text[32] = "";
  gethostname(host, sizeof host - 1);
  snprintf(path, sizeof path, "%s/%s.%s", folder, kind, host);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (syscall(SYS_read, fd, text, sizeof text - 1) < 0) text[0] = 0;
    syscall(SYS_close, fd);
  }
  busy = 0;
  return atol(text);
}

static void wait_if_slow(int fd) {
  struct stat about;
  const long ms = asked("slow");
  if (ms > 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
  }
}

ssize_t write(int fd, const void* bytes, size_t count) {
  wait_if_slow(fd);
  return syscall(SYS_write, fd, bytes, count);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  wait_if_slow(fd);
  return syscall(SYS_pwrite64, fd, bytes, count, offset);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  return pwrite64(fd, bytes, count, offset);
}
int fsync(int fd) {
  wait_if_slow(fd);
  return (int)syscall(SYS_fsync, fd);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*) = NULL;
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME) now->tv_sec += asked("clock");
  return status;
}
time_t time(time_t* result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
