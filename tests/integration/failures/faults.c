/* Preloaded into a driver and its workers: one file change fails, or the wall clock jumps.

   FAULT_PATH   only changes below this directory count
   FAULT_AT     the n-th change of each process fails …
   FAULT_ERRNO  … with this error (EIO is 5, ENOSPC is 28)
   FAULT_CLOCK  the wall clock jumps by this many seconds, forward and back, every 50 readings

   Descriptors are recognised by the path that the kernel knows for them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_long changes, readings;

static int below(const char *path) {
    const char *root = getenv("FAULT_PATH");
    return root && path && strncmp(path, root, strlen(root)) == 0;
}

static int known(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static int fails(int counts) {
    const char *at = getenv("FAULT_AT"), *number = getenv("FAULT_ERRNO");
    if (!counts || !at || !number || atomic_fetch_add(&changes, 1) + 1 != atol(at))
        return 0;
    errno = atoi(number);
    return 1;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int before = errno;
    int counts = known(fd);
    errno = before;
    return fails(counts) ? -1 : real(fd, data, size);
}

int fsync(int fd) {
    REAL(fsync);
    return fails(known(fd)) ? -1 : real(fd);
}

int rename(const char *old, const char *new) {
    REAL(rename);
    return fails(below(new)) ? -1 : real(old, new);
}

int renameat(int olddir, const char *old, int newdir, const char *new) {
    REAL(renameat);
    return fails(below(new)) ? -1 : real(olddir, old, newdir, new);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails(below(path)) ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(below(path)) ? -1 : real(path, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails((flags & O_CREAT) && below(path)) ? -1 : real(path, flags, mode);
}

static long jump(void) {
    const char *seconds = getenv("FAULT_CLOCK");
    return seconds && (atomic_fetch_add(&readings, 1) / 50) % 2 ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += jump();
    return result;
}
