"""Holds the program where a test wants it: by a library that is loaded before the C library's calls."""
import os
import subprocess
import time

SOURCE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* HOLD=what:name (create, open, unlink, rename), the name as a shell's pattern: leaves HOLD_AT.reached, and goes on when there is HOLD_AT.go. */
static void hold(const char *what, const char *path) {
  const char *want = getenv("HOLD"), *at = getenv("HOLD_AT"), *name = strrchr(path, '/');
  size_t n = strlen(what);
  char file[4096];
  name = name ? name + 1 : path;
  if (!want || !at || strncmp(program_invocation_short_name, "firn", 4) || strncmp(want, what, n) || want[n] != ':' || fnmatch(want + n + 1, name, 0))
    return;
  snprintf(file, sizeof file, "%s.reached", at);
  close(syscall(SYS_openat, AT_FDCWD, file, O_CREAT | O_WRONLY, 0600));
  snprintf(file, sizeof file, "%s.go", at);
  while (access(file, F_OK)) usleep(5000);
}

/* REFUSE=end: a path with that end is not to be opened. KEEP=end: nor to be removed. */
static int has_end(const char *path, const char *variable) {
  const char *end = getenv(variable);
  size_t n = end ? strlen(end) : 0, length = strlen(path);
  return n && n <= length && !strcmp(path + length - n, end);
}
static int refused(const char *path) { return has_end(path, "REFUSE"); }

int unlink(const char *path) {
  hold("unlink", path);
  if (has_end(path, "KEEP")) { errno = EPERM; return -1; }
  return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int rename(const char *from, const char *to) { hold("rename", to); return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }

static int with_links(const char *which) { const char *links = getenv("LINKS"); return links && !strcmp(links, which); }
/* LINKS=none, LINKS=error: nor is a file renamed on condition. That is asked of the kernel without the C library. */
__attribute__((constructor)) static void unconditional(void) {
  struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (!with_links("none") && !with_links("error")) return;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
    perror("seccomp");
    _exit(99);
  }
}
/* A file gets its name by a link where it is to be new. */
int linkat(int dir, const char *from, int other, const char *to, int flags) {
  hold("rename", to);
  /* LINKS=no, LINKS=none: a file system without links. LINKS=lost, LINKS=error: one that made the link, and says that the name is taken, or an error. */
  if (with_links("no") || with_links("none")) { errno = EPERM; return -1; }
  int r = syscall(SYS_linkat, dir, from, other, to, flags);
  if (with_links("lost") && !r) { errno = EEXIST; return -1; }
  if (with_links("error") && !r) { errno = EIO; return -1; }
  return r;
}
static int opened(const char *path, int flags, int mode) {
  if (refused(path)) { errno = EACCES; return -1; }
  hold(flags & O_CREAT ? "create" : "open", path);
  return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open(const char *path, int flags, ...) { va_list l; va_start(l, flags); int mode = va_arg(l, int); va_end(l); return opened(path, flags, mode); }
int open64(const char *path, int flags, ...) { va_list l; va_start(l, flags); int mode = va_arg(l, int); va_end(l); return opened(path, flags, mode); }
DIR *opendir(const char *path) {
  static DIR *(*next)(const char *);
  if (refused(path)) { errno = EACCES; return NULL; }
  if (!next) next = (DIR *(*)(const char *)) dlsym(RTLD_NEXT, "opendir");
  return next(path);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  const char *ahead = getenv("AHEAD");
  int r = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && ahead) now->tv_sec += atol(ahead);
  return r;
}
"""


def library(cluster):
    path = os.path.join(cluster.root, "hold.so")
    if not os.path.exists(path):
        with open(path[:-3] + ".c", "w") as f:
            f.write(SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, path[:-3] + ".c", "-ldl"], check=True)
    return path


def refusing(cluster, end):
    """Environment in which paths with this end cannot be opened."""
    return {"LD_PRELOAD": library(cluster), "REFUSE": end}


def keeping(cluster, end):
    """Environment in which paths with this end cannot be removed."""
    return {"LD_PRELOAD": library(cluster), "KEEP": end}


def links(cluster, which):
    """Environment with other links than a file system has: `no`, `none`, `lost` or `error`."""
    return {"LD_PRELOAD": library(cluster), "LINKS": which}


class Hold:
    """`env` makes a program wait where it is about to do that: `create:`, `open:`, `unlink:` or `rename:` and a file's name."""
    count = 0

    def __init__(self, cluster, what, ahead=0):
        Hold.count += 1
        self.at = os.path.join(cluster.root, f"hold-{Hold.count}")
        self.env = {"LD_PRELOAD": library(cluster), "HOLD": what, "HOLD_AT": self.at, "AHEAD": str(ahead)}

    def reached(self, process):
        end = time.time() + 60
        while not os.path.exists(f"{self.at}.reached"):
            assert time.time() < end and process.poll() is None, process.communicate()
            time.sleep(0.01)

    def go(self):
        with open(f"{self.at}.go", "w"):
            pass
