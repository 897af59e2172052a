/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of TCP as a busy network makes them, loaded before the library: each call sends or receives any number of
 * bytes of what it is given, or fails for a while, as TORN_SEED says. With TORN_FAMILY (4 or 6) one connection over
 * this version of IP breaks as well, in one of several ways. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* A greeting, or a frame without a body: so few bytes are sent whole. */
#define FEW 24
#define PIECES 64

static long number_of(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

static uint64_t any(void) {
    static _Thread_local uint64_t state;
    if (state == 0) state = (uint64_t)number_of("TORN_SEED") * 0x9e3779b97f4a7c15 + (uint64_t)gettid();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int is_tcp(int fd) {
    int protocol = 0;
    socklen_t size = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

static int is_of_family(int fd, long family) {
    struct sockaddr_storage name;
    socklen_t size = sizeof name;
    if (family == 0 || getsockname(fd, (struct sockaddr *)&name, &size) != 0) return 0;
    return name.ss_family == (family == 4 ? AF_INET : AF_INET6);
}

/* Whether a call fails by the end of its connection. */
static int is_broken(int fd) {
    static long calls;
    long seed = number_of("TORN_SEED");
    if (!is_of_family(fd, number_of("TORN_FAMILY"))) return 0;
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) != 10 + seed * 37 % 100) return 0;
    if (seed % 3 == 0) {
        shutdown(fd, SHUT_RDWR);
        return 0;
    }
    errno = seed % 3 == 1 ? ECONNRESET : ETIMEDOUT;
    return 1;
}

/* Whether a call fails for now. */
static int is_refused(int sends) {
    static const int why[] = {EAGAIN, EINTR, ENOBUFS};
    uint64_t draw = any() % 10;
    if (draw >= (sends ? 3 : 2)) return 0;
    errno = why[draw];
    return 1;
}

/* How many of so many bytes a call takes. */
static size_t some_of(size_t bytes) {
    if (bytes <= 1) return bytes;
    switch (any() % 8) {
    case 0: return 1;
    case 1:
    case 2: return 1 + any() % (bytes < 64 ? bytes : 64);
    case 3:
    case 4: return 1 + any() % bytes;
    case 5: return bytes - 1;
    default: return bytes;
    }
}

/* The same message with some of its bytes. */
static struct msghdr torn(const struct msghdr *message, struct iovec pieces[PIECES]) {
    struct msghdr result = *message;
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) bytes += message->msg_iov[i].iov_len;
    if (bytes == 0 || message->msg_iovlen > PIECES) return result;
    size_t left = some_of(bytes);
    for (result.msg_iovlen = 0; left > 0; result.msg_iovlen++) {
        struct iovec *piece = &pieces[result.msg_iovlen];
        *piece = message->msg_iov[result.msg_iovlen];
        if (piece->iov_len > left) piece->iov_len = left;
        left -= piece->iov_len;
    }
    result.msg_iov = pieces;
    return result;
}

ssize_t send(int fd, const void *bytes, size_t len, int flags) {
    if (len > FEW && is_tcp(fd)) {
        if (is_broken(fd) || is_refused(1)) return -1;
        len = some_of(len);
    }
    return syscall(SYS_sendto, fd, bytes, len, flags, NULL, 0);
}

ssize_t recv(int fd, void *bytes, size_t len, int flags) {
    if (is_tcp(fd)) {
        if ((len > FEW && is_broken(fd)) || is_refused(0)) return -1;
        len = some_of(len);
    }
    return syscall(SYS_recvfrom, fd, bytes, len, flags, NULL, NULL);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    if (!is_tcp(fd)) return syscall(SYS_sendmsg, fd, message, flags);
    if (is_broken(fd) || is_refused(1)) return -1;
    struct iovec pieces[PIECES];
    struct msghdr some = torn(message, pieces);
    return syscall(SYS_sendmsg, fd, &some, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    if (!is_tcp(fd)) return syscall(SYS_recvmsg, fd, message, flags);
    if (is_broken(fd) || is_refused(0)) return -1;
    struct iovec pieces[PIECES];
    struct msghdr some = torn(message, pieces);
    return syscall(SYS_recvmsg, fd, &some, flags);
}
