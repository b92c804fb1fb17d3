// Fails one call of the C library below a folder; loaded before the library (LD_PRELOAD).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FILES = 1 << 16, MAX_CALLS = 1 << 14, SHORT = -1 };

static char folder[4096];
static size_t folder_length;  // 0: nothing is counted
static atomic_long num_calls;
static long failing;
static int fault;  // an error number, or SHORT
static char kind[16];
static const char *names[MAX_CALLS];
static char is_below[MAX_FILES];  // by descriptor

// Begin to count; the call of this number, from 0, fails if it is of this kind.
void fault_begin(const char *path, long number, const char *call, int error) {
    strncpy(kind, call, sizeof kind - 1);
    strncpy(folder, path, sizeof folder - 1);
    num_calls = 0;
    failing = number;
    fault = error;
    folder_length = strlen(folder);
}

// Stop; return how many calls there were.
long fault_end(void) {
    folder_length = 0;
    return num_calls;
}

const char *fault_name(long number) { return number < MAX_CALLS && names[number] ? names[number] : ""; }

static int is_file(int number) {
    return folder_length && number >= 0 && number < MAX_FILES && is_below[number];
}

static int is_path(int directory, const char *path) {
    if (!folder_length || !path) return 0;
    if (path[0] == '/') return !strncmp(path, folder, folder_length);
    return is_file(directory);
}

// Return whether this call fails.
static int fails(int counted, const char *name) {
    if (!counted) return 0;
    long number = num_calls++;
    if (number < MAX_CALLS) names[number] = name;
    if (number != failing || strcmp(name, kind)) return 0;
    if (fault != SHORT) errno = fault;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, name)
#define FAIL(counted, name) \
    if (fails(counted, name) && fault != SHORT) return -1

static int mark(int number, int below) {
    if (number >= 0 && number < MAX_FILES) is_below[number] = below;
    return number;
}

#define OPEN(name, directory, ...) { \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    int below = is_path(directory, path); \
    FAIL(below, flags & O_CREAT ? "create" : "open"); \
    return mark(real(__VA_ARGS__, flags, mode), below); }

int open(const char *path, int flags, ...) { REAL(int, "open", const char *, int, mode_t); OPEN("open", -1, path) }
int open64(const char *path, int flags, ...) { REAL(int, "open64", const char *, int, mode_t); OPEN("open", -1, path) }
int openat(int at, const char *path, int flags, ...) { REAL(int, "openat", int, const char *, int, mode_t); OPEN("open", at, at, path) }
int openat64(int at, const char *path, int flags, ...) { REAL(int, "openat64", int, const char *, int, mode_t); OPEN("open", at, at, path) }

int close(int number) {
    REAL(int, "close", int);
    int below = is_file(number);
    if (number >= 0 && number < MAX_FILES) is_below[number] = 0;
    int result = real(number);
    FAIL(below, "close");
    return result;
}

#define HALF(nbytes) ((nbytes) > 1 ? (nbytes) / 2 : (nbytes))
// A short transfer.
#define CUT(name, short_form, whole_form) { \
    if (fails(is_file(number), name)) { \
        if (fault != SHORT) return -1; \
        return short_form; \
    } \
    return whole_form; }

ssize_t write(int number, const void *data, size_t nbytes) { REAL(ssize_t, "write", int, const void *, size_t); CUT("write", real(number, data, HALF(nbytes)), real(number, data, nbytes)) }
ssize_t read(int number, void *data, size_t nbytes) { REAL(ssize_t, "read", int, void *, size_t); CUT("read", real(number, data, HALF(nbytes)), real(number, data, nbytes)) }
ssize_t pwrite64(int number, const void *data, size_t nbytes, off64_t at) { REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t); CUT("write", real(number, data, HALF(nbytes), at), real(number, data, nbytes, at)) }
ssize_t pwrite(int number, const void *data, size_t nbytes, off_t at) { return pwrite64(number, data, nbytes, at); }
ssize_t pread64(int number, void *data, size_t nbytes, off64_t at) { REAL(ssize_t, "pread64", int, void *, size_t, off64_t); CUT("read", real(number, data, HALF(nbytes), at), real(number, data, nbytes, at)) }
ssize_t pread(int number, void *data, size_t nbytes, off_t at) { return pread64(number, data, nbytes, at); }
ssize_t writev(int number, const struct iovec *parts, int count) { REAL(ssize_t, "writev", int, const struct iovec *, int); CUT("write", write(number, parts->iov_base, HALF(parts->iov_len)), real(number, parts, count)) }
ssize_t preadv64(int number, const struct iovec *parts, int count, off64_t at) { REAL(ssize_t, "preadv64", int, const struct iovec *, int, off64_t); CUT("read", pread64(number, parts->iov_base, HALF(parts->iov_len), at), real(number, parts, count, at)) }

#define ONE(name, counted, type, arguments, ...) \
    int name arguments { REAL(int, #name, __VA_ARGS__); FAIL(counted, type); return real

ONE(fsync, is_file(number), "fsync", (int number), int)(number); }
ONE(fdatasync, is_file(number), "fsync", (int number), int)(number); }
ONE(ftruncate64, is_file(number), "truncate", (int number, off64_t size), int, off64_t)(number, size); }
ONE(mkdir, is_path(-1, path), "mkdir", (const char *path, mode_t mode), const char *, mode_t)(path, mode); }
ONE(rmdir, is_path(-1, path), "rmdir", (const char *path), const char *)(path); }
ONE(unlink, is_path(-1, path), "unlink", (const char *path), const char *)(path); }
ONE(unlinkat, is_path(at, path), "unlink", (int at, const char *path, int flags), int, const char *, int)(at, path, flags); }
ONE(rename, is_path(-1, to), "rename", (const char *from, const char *to), const char *, const char *)(from, to); }
ONE(renameat2, is_path(a, to), "rename", (int a, const char *from, int b, const char *to, unsigned f), int, const char *, int, const char *, unsigned)(a, from, b, to, f); }
ONE(renameat, is_path(b, to), "rename", (int a, const char *from, int b, const char *to), int, const char *, int, const char *)(a, from, b, to); }
ONE(link, is_path(-1, to), "link", (const char *from, const char *to), const char *, const char *)(from, to); }
ONE(linkat, is_path(b, to), "link", (int a, const char *from, int b, const char *to, int f), int, const char *, int, const char *, int)(a, from, b, to, f); }
ONE(stat64, is_path(-1, path), "stat", (const char *path, struct stat64 *found), const char *, struct stat64 *)(path, found); }
ONE(lstat64, is_path(-1, path), "stat", (const char *path, struct stat64 *found), const char *, struct stat64 *)(path, found); }
ONE(stat, is_path(-1, path), "stat", (const char *path, struct stat *found), const char *, struct stat *)(path, found); }
ONE(lstat, is_path(-1, path), "stat", (const char *path, struct stat *found), const char *, struct stat *)(path, found); }
ONE(fstatat64, is_path(at, path), "stat", (int at, const char *path, struct stat64 *found, int f), int, const char *, struct stat64 *, int)(at, path, found, f); }
ONE(fstat64, is_file(number), "stat", (int number, struct stat64 *found), int, struct stat64 *)(number, found); }
ONE(fstat, is_file(number), "stat", (int number, struct stat *found), int, struct stat *)(number, found); }

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    if (fails(is_path(-1, path), "list") && fault != SHORT) return NULL;
    return real(path);
}
