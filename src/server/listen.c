/*
 * The listening socket: resolving, binding, and messages that say what to do when an address can not be had.
 */
/* SOCK_CLOEXEC: a socket must not leak into a child between socket() and fcntl(). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base_impl.h"
#include "server/serve_state.h"

#define BACKLOG 128

/* 127.0.0.0/8 and ::1. The address is copied out: a sockaddr may not be aligned for its real type. */
static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    }
    return false;
}

/* The port that the socket really has: the system chose it when 0 was asked for. */
static uint32_t bound_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t n_bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &n_bytes) != 0) {
        return 0;
    }
    in_port_t port = 0;
    if (address.ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, &address, sizeof v4);
        port = v4.sin_port;
    } else if (address.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &address, sizeof v6);
        port = v6.sin6_port;
    }
    return ntohs(port);
}

/* A socket on one address; -1 with errno set. */
static int try_address(const struct addrinfo *info)
{
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) {
        return -1;
    }
    const int on = 1;
    /* A restart must not wait for old connections to time out. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    const int os_error = errno;
    (void)close(fd);
    errno = os_error;
    return -1;
}

firn_status firni_listen_open(const char *host, uint32_t port, int *fd, uint32_t *real_port, bool *loopback,
                              firn_error *err)
{
    *fd = -1;
    char service[16];
    (void)snprintf(service, sizeof service, "%u", (unsigned)port);
    const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "--host %.100s: %s", host, gai_strerror(rc));
    }
    /* A name may have several addresses ("localhost": ::1 and 127.0.0.1): the first that can be bound is taken. */
    int os_error = EADDRNOTAVAIL;
    for (const struct addrinfo *info = list; info != NULL && *fd < 0; info = info->ai_next) {
        *fd = try_address(info);
        if (*fd < 0) {
            os_error = errno;
        } else {
            *loopback = is_loopback(info->ai_addr);
        }
    }
    freeaddrinfo(list);
    if (*fd >= 0) {
        *real_port = bound_port(*fd);
        return FIRN_OK;
    }
    if (os_error == EADDRINUSE) {
        (void)firni_fail(
            err, FIRN_ERR_IO,
            "port %u of %.100s is in use by another program; choose another with --port N (0: any free one)",
            (unsigned)port, host);
        if (err != NULL) {
            err->os_error = os_error;
        }
        return FIRN_ERR_IO;
    }
    return firni_fail_os(err, os_error, "cannot listen on %.100s port %u", host, (unsigned)port);
}
