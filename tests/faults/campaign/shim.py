"""A C library for LD_PRELOAD that counts a process's file operations and interferes with the k-th.

At the level of libc all operations are seen, also those of safetensors (Rust) and numpy, whatever the command
is made of. Nothing happens until `campaign_arm` is called, which the server's children do.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ACTIONS = {
    "count": 0,  # do nothing
    "kill": 1,  # SIGKILL before the operation
    "torn": 2,  # the same, but half of a write is done
    "power": 3,  # the same, and files lose everything since their last fsync
    "once": 4,  # this operation fails with an error
    "on": 5,  # this operation fails and so do all that follow
    "signal": 6,  # a signal arrives before the operation
    "stop": 7,  # SIGSTOP before the operation
}

# The letters by which the trace names operations, for each error that they can meet.
ERRORS = {"ENOSPC": "owmrlaf", "EIO": "owmrlaftu", "EACCES": "omrltu", "EROFS": "owmrlatu"}

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, TORN, POWER, ONCE, ON, SIGNAL, STOP };

#define MOST 200000
static char root[4096];              /* only operations below this folder count; empty: not armed */
static int action, code;             /* code: the error or the signal */
static char can_fail[32];            /* the letters of the operations that the error can meet */
static long at, done;
static char letters[MOST + 1];       /* one letter for each operation so far */

/* Files with data that were not flushed, and how long they were at the last flush. */
static struct { dev_t dev; ino_t ino; off_t size; int fd; } dirty[1024];
static int n_dirty;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static long real_write(int fd, const void *data, size_t n) { REAL(write); return real(fd, data, n); }

static int below(const char *path) {
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static int watched(int folder, const char *path) {
    char whole[8192], base[4096];
    if (!root[0] || !path) return 0;
    if (path[0] == '/') return below(path);
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return below(whole);
}

static int watched_fd(int fd) {
    char link[64], path[4096];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}

/* ------------------------------------------------------------ what a power cut loses */

static int find_dirty(struct stat *s) {
    for (int i = 0; i < n_dirty; i++)
        if (dirty[i].dev == s->st_dev && dirty[i].ino == s->st_ino) return i;
    return -1;
}

static void will_write(int fd) {
    struct stat s;
    char link[64];
    if (action != POWER || fstat(fd, &s) || !S_ISREG(s.st_mode) || find_dirty(&s) >= 0 || n_dirty == 1024)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    REAL(open);
    int own = real(link, O_WRONLY | O_CLOEXEC); /* not dup: that would hold the file's lock */
    if (own < 0) return;
    dirty[n_dirty].dev = s.st_dev;
    dirty[n_dirty].ino = s.st_ino;
    dirty[n_dirty].size = s.st_size;
    dirty[n_dirty++].fd = own;
}

static void flushed(int fd) {
    struct stat s;
    if (action != POWER || fstat(fd, &s)) return;
    int i = find_dirty(&s);
    if (i >= 0) dirty[i].size = s.st_size;
}

static void lose_unflushed(void) {
    REAL(ftruncate);
    struct stat s;
    for (int i = 0; i < n_dirty; i++)
        if (!fstat(dirty[i].fd, &s) && s.st_size > dirty[i].size && real(dirty[i].fd, dirty[i].size))
            continue;
}

/* ------------------------------------------------------------ before each operation */

/* Count an operation; returns 1 with errno set if it shall fail. For a write, data are given. */
static int before(char letter, int fd, const void *data, size_t n) {
    if (done < MOST) letters[done] = letter;
    done++;
    if (action == COUNT || done < at) return 0;
    if (action == ONCE || action == ON) {
        if (!strchr(can_fail, letter) || (action == ONCE && done > at)) return 0;
        errno = code;
        return 1;
    }
    if (done > at) return 0;
    if (action == SIGNAL) { raise(code); return 0; }
    if (action == STOP) { raise(SIGSTOP); return 0; }
    if (action == TORN && data && real_write(fd, data, n / 2) < 0) _exit(99);
    if (action == POWER) lose_unflushed();
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* ------------------------------------------------------------ the operations */

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags) REAL(name); \
        if (writes(flags) && watched(AT_FDCWD, path) && before('o', -1, NULL, 0)) return -1; \
        return real(path, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        MODE(flags) REAL(name); \
        if (writes(flags) && watched(folder, path) && before('o', -1, NULL, 0)) return -1; \
        return real(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t n) {
    if (watched_fd(fd)) {
        will_write(fd);
        if (before('w', fd, data, n)) return -1;
    }
    return real_write(fd, data, n);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(writev);
    if (watched_fd(fd)) {
        will_write(fd);
        if (before('w', fd, n ? parts[0].iov_base : NULL, n ? parts[0].iov_len : 0)) return -1;
    }
    return real(fd, parts, n);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t n, offset_type offset) { \
        REAL(name); \
        if (watched_fd(fd)) { will_write(fd); if (before('w', -1, NULL, 0)) return -1; } \
        return real(fd, data, n, offset); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define RENAME2(name, letter) \
    int name(const char *from, const char *to) { \
        REAL(name); \
        if (watched(AT_FDCWD, to) && before(letter, -1, NULL, 0)) return -1; \
        return real(from, to); }
RENAME2(rename, 'r')
RENAME2(link, 'l')
RENAME2(symlink, 'l')

int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    if (watched(b, to) && before('r', -1, NULL, 0)) return -1;
    return real(a, from, b, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat);
    if (watched(b, to) && before('l', -1, NULL, 0)) return -1;
    return real(a, from, b, to, flags);
}

#define PATH1(name, letter) \
    int name(const char *path) { \
        REAL(name); \
        if (watched(AT_FDCWD, path) && before(letter, -1, NULL, 0)) return -1; \
        return real(path); }
PATH1(unlink, 'u')
PATH1(rmdir, 'u')

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    if (watched(folder, path) && before('u', -1, NULL, 0)) return -1;
    return real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (watched(AT_FDCWD, path) && before('m', -1, NULL, 0)) return -1;
    return real(path, mode);
}

#define TRUNCATE(name, size_type) \
    int name(const char *path, size_type size) { \
        REAL(name); \
        if (watched(AT_FDCWD, path) && before('t', -1, NULL, 0)) return -1; \
        return real(path, size); }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

#define FTRUNCATE(name, size_type) \
    int name(int fd, size_type size) { \
        REAL(name); \
        if (watched_fd(fd)) { will_write(fd); if (before('t', -1, NULL, 0)) return -1; } \
        return real(fd, size); }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define FALLOCATE(name, size_type) \
    int name(int fd, size_type offset, size_type n) { \
        REAL(name); \
        if (watched_fd(fd)) { will_write(fd); if (before('a', -1, NULL, 0)) return errno; } \
        return real(fd, offset, n); }
FALLOCATE(posix_fallocate, off_t)
FALLOCATE(posix_fallocate64, off64_t)

/* Flushing is only pretended: a killed process loses nothing that the system has, and the disk is slow. */
#define FSYNC(name) \
    int name(int fd) { \
        REAL(name); \
        if (!watched_fd(fd)) return real(fd); \
        if (before('f', -1, NULL, 0)) return -1; \
        flushed(fd); \
        return 0; }
FSYNC(fsync)
FSYNC(fdatasync)

ssize_t copy_file_range(int a, off64_t *from, int b, off64_t *to, size_t n, unsigned flags) {
    REAL(copy_file_range);
    if (watched_fd(b)) { will_write(b); if (before('w', -1, NULL, 0)) return -1; }
    return real(a, from, b, to, n, flags);
}

#define SENDFILE(name, offset_type) \
    ssize_t name(int out, int in, offset_type *offset, size_t n) { \
        static ssize_t (*real)(int, int, offset_type *, size_t); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (watched_fd(out)) { will_write(out); if (before('w', -1, NULL, 0)) return -1; } \
        return real(out, in, offset, n); }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

/* ------------------------------------------------------------ for the server's children */

void campaign_arm(const char *folder, int what, long number, int value, const char *operations) {
    action = what; at = number; code = value; done = 0;
    snprintf(can_fail, sizeof can_fail, "%s", operations);
    snprintf(root, sizeof root, "%s", folder);
}

const char *campaign_disarm(void) { root[0] = 0; return letters; }
"""


def build(folder: Path) -> Path:
    """Compile the library into a folder; RuntimeError without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the campaign needs a C compiler (cc).")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SOURCE)
    options = ["-shared", "-fPIC", "-O1", "-D_LARGEFILE64_SOURCE"]
    done = subprocess.run(
        [compiler, *options, "-o", library, source, "-ldl"], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"cannot compile the campaign's library: {done.stderr}")
    return library
