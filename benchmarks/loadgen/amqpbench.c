/*
 * amqpbench - an AMQP 0-9-1 load generator that is not the bottleneck.
 *
 * One thread, one epoll loop, raw sockets, no library.  Publish frames are
 * encoded once into a ring and only a 16-byte stamp inside each body is
 * patched per message; deliveries are parsed in bulk from a large buffer.
 * Every body starts with: u64 send time (ns), u16 publisher, 6-byte sequence
 * number, so latency and per-publisher order are checked on every delivery.
 *
 * Build:  make              (into build/)
 * Usage:  ./amqpbench --help          Output: one JSON object on stdout.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAXCONN 4096
#define INCAP   (1u << 20)
#define STAMP   16

/* ---------- options ---------- */
/* 16-byte stamp: send time, publisher, sequence */
static struct {
    const char *host, *port, *user, *pass, *vhost, *mode, *queue, *xname, *xtype, *qtype, *props, *dir, *label;
    const char *topic, *part;
    int publishers, consumers, queues, bindings, keys, size, confirm, prefetch, ackn, persistent, durable;
    int mandatory, pin, keep, attach, hold, channels, count, group, prealloc, nosync, dense;
    const char *filter; int priorities, dead, ttl_min, ttl_max, delayed, nackn;
    long messages, outstanding, batch, first, depth;
    double rate, duration, warmup, timeout, report;
    int npids; int pids[32];
    int nargs; char *argk[18], *argv[18];
} o = {
    .host = "127.0.0.1", .port = "5672", .user = "guest", .pass = "guest", .vhost = "/", .mode = "run",
    .queue = "", .xname = "bench.x", .xtype = "default", .qtype = "", .props = "min", .dir = ".", .label = "",
    .topic = "star", .part = "both", .publishers = 1, .consumers = 1, .queues = 1, .size = 16, .ackn = 0, .prefetch = 0,
    .batch = 65536, .duration = 5, .warmup = 1, .timeout = 600, .channels = 1, .count = 1000, .group = 1, .depth = -1,
};

static void die(const char *f, ...) {
    va_list a; va_start(a, f); fprintf(stderr, "amqpbench: "); vfprintf(stderr, f, a); fprintf(stderr, "\n"); va_end(a);
    _exit(1);                                                  /* half an object on stdout would be no JSON */
}
static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }

/* ---------- big endian ---------- */
static inline uint16_t r16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t r32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t r64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline uint8_t *w8(uint8_t *p, unsigned v) { *p = v; return p + 1; }
static inline uint8_t *w16(uint8_t *p, unsigned v) { p[0] = v >> 8; p[1] = v; return p + 2; }
static inline uint8_t *w32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); return p + 4; }
static inline uint8_t *w64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); return p + 8; }
static uint8_t *wss(uint8_t *p, const char *s) { size_t n = strlen(s); *p++ = n; memcpy(p, s, n); return p + n; }
static uint8_t *wls(uint8_t *p, const void *s, size_t n) { p = w32(p, n); memcpy(p, s, n); return p + n; }

/* ---------- latency histogram: 64 powers of two x 64 steps, <1.6 % error ---------- */
typedef struct { uint64_t n, max; uint32_t b[64 * 64]; } Hist;
static Hist h_dlv, h_cfm;
static inline void hrec(Hist *h, uint64_t v) {
    unsigned i;
    if (v < 64) i = v;
    else { int e = 63 - __builtin_clzll(v); i = ((e - 5) << 6) + ((v >> (e - 6)) & 63); }
    h->b[i]++; h->n++; if (v > h->max) h->max = v;
}
static uint64_t hpct(Hist *h, double q) {
    uint64_t want = (uint64_t)(q * h->n), c = 0;
    if (!h->n) return 0;
    for (unsigned i = 0; i < 64 * 64; i++) {
        c += h->b[i];
        if (c > want) { if (i < 64) return i; int e = (i >> 6) + 5; return (1ull << e) + ((uint64_t)(i & 63) << (e - 6)); }
    }
    return h->max;
}

/* ---------- process accounting ---------- */
static double pid_cpu(int pid) {
    char f[64], buf[1024]; snprintf(f, sizeof f, "/proc/%d/stat", pid);
    int fd = open(f, O_RDONLY); if (fd < 0) return 0;
    int n = read(fd, buf, sizeof buf - 1); close(fd); if (n <= 0) return 0; buf[n] = 0;
    char *p = strrchr(buf, ')'); unsigned long u = 0, s = 0;
    if (!p || sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &s) != 2) return 0;
    return (double)(u + s) / sysconf(_SC_CLK_TCK);
}
static long pid_memory(int pid, const char *field) {
    char f[64], l[256]; snprintf(f, sizeof f, "/proc/%d/status", pid); size_t n = strlen(field);
    FILE *fp = fopen(f, "r"); long kb = 0; if (!fp) return 0;
    while (fgets(l, sizeof l, fp)) if (!strncmp(l, field, n) && l[n] == ':') { kb = atol(l + n + 1); break; }
    fclose(fp); return kb * 1024;
}
static double bcpu(void) { double s = 0; for (int i = 0; i < o.npids; i++) s += pid_cpu(o.pids[i]); return s; }
static long bmemory(const char *field) { long s = 0; for (int i = 0; i < o.npids; i++) s += pid_memory(o.pids[i], field); return s; }
static long brss(void) { return bmemory("VmRSS"); }
/* busy CPU seconds of the whole machine, and time stolen by the hypervisor */
static double sys_busy(double *steal) {
    FILE *f = fopen("/proc/stat", "r"); unsigned long u = 0, n = 0, s = 0, i = 0, w = 0, q = 0, sq = 0, st = 0;
    if (f) { if (fscanf(f, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", &u, &n, &s, &i, &w, &q, &sq, &st) != 8) u = 0; fclose(f); }
    double hz = sysconf(_SC_CLK_TCK); *steal = st / hz; return (u + n + s + q + sq) / hz;
}
static double mycpu(void) {
    struct rusage r; getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* ---------- connections ---------- */
typedef struct Conn {
    int fd, idx, is_pub, want_out;
    uint8_t *in; size_t ipos, ilen;
    uint8_t *out; size_t opos, olen, ocap;        /* acks and RPCs */
    /* publisher */
    uint8_t *ring; size_t unit, stamp_off; int nunits, cursor;
    size_t woff, wend;                            /* pending slice of ring */
    uint64_t published, first_number, base, outst; uint64_t *sent_at; uint8_t *cdone; uint64_t cmask;
    int blocked, closed;
    /* consumer */
    uint64_t dtag, remaining; int first, getting; uint64_t ts, seq; unsigned pub;
    uint64_t unacked; uint64_t *last, *missing; int rejects, redelivered;
    uint32_t frame_max;
} Conn;

static Conn *conns[MAXCONN]; static int nconns;
static uint64_t g_pub, g_dlv, g_cfm, g_nack, g_ret, g_ooo, g_blocked, g_bad, g_redel, g_gap, g_dup, g_early, g_depth;
static long g_lost;
static uint64_t read_now;
static int ep, latency_on, fan = 1, nkeys = 1, nunits_of_first;
static uint64_t *due;                                           /* mode expiry: when each message is to expire */
static uint32_t *ttl_of_unit;                                    /* --expiration: ms, by place in the ring of a publisher */

static int tcp_connect(void) {
    struct addrinfo hint = { .ai_socktype = SOCK_STREAM }, *ai;
    int e = getaddrinfo(o.host, o.port, &hint, &ai); if (e) die("resolve %s: %s", o.host, gai_strerror(e));
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, ai->ai_addr, ai->ai_addrlen)) die("connect %s:%s: %s", o.host, o.port, strerror(errno));
    freeaddrinfo(ai);
    int one = 1; setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}
static void put_all(int fd, const void *b, size_t n) {
    const char *p = b;
    while (n) { ssize_t k = write(fd, p, n); if (k <= 0) die("write: %s", strerror(errno)); p += k; n -= k; }
}
static void explain_close(const uint8_t *p, const char *what) {
    unsigned code = r16(p + 11), n = p[13]; die("server closed %s: %u %.*s", what, code, n, (const char *)p + 14);
}
/* blocking: wait for one method on any channel, skipping heartbeats; returns pointer to the method payload */
static uint8_t *rpc_wait(Conn *c, uint32_t want) {
    for (;;) {
        size_t av = c->ilen - c->ipos; uint8_t *p = c->in + c->ipos;
        if (av >= 7 && av >= r32(p + 3) + 8ull) {
            uint32_t sz = r32(p + 3); c->ipos += sz + 8;
            if (p[0] == 8) continue;
            if (p[7 + sz] != 0xCE) die("bad frame end");
            if (p[0] != 1) die("unexpected frame type %d while waiting for %u.%u", p[0], want >> 16, want & 0xffff);
            uint32_t m = r32(p + 7);
            if (m == want) return p + 11;
            if (m == 0x000a0032) explain_close(p, "connection");
            if (m == 0x00140028) explain_close(p, "channel");
            if (m == 0x000a003c || m == 0x000a003d) continue;
            die("got method %u.%u, wanted %u.%u", m >> 16, m & 0xffff, want >> 16, want & 0xffff);
        }
        if (c->ipos) { memmove(c->in, p, av); c->ipos = 0; c->ilen = av; }
        ssize_t k = read(c->fd, c->in + c->ilen, INCAP - c->ilen);
        if (k <= 0) die("connection lost in handshake (%s)", k ? strerror(errno) : "eof");
        c->ilen += k;
    }
}
static void send_method(Conn *c, unsigned ch, uint32_t m, const uint8_t *args, size_t n) {
    uint8_t b[4096], *p = b; p = w8(p, 1); p = w16(p, ch); p = w32(p, n + 4); p = w32(p, m);
    memcpy(p, args, n); p += n; p = w8(p, 0xCE); put_all(c->fd, b, p - b);
}
static Conn *conn_open_raw(void) { Conn *c = calloc(1, sizeof *c); c->fd = tcp_connect(); c->in = malloc(INCAP); return c; }
static void handshake(Conn *c) {
    uint8_t a[2048], *p;
    put_all(c->fd, "AMQP\0\0\11\1", 8);
    rpc_wait(c, 0x000a000a);
    uint8_t t[512], *q = t;                                    /* client-properties */
    q = wss(q, "product"); *q++ = 'S'; q = wls(q, "amqpbench", 9);
    q = wss(q, "capabilities"); *q++ = 'F';
    { uint8_t u[256], *v = u;
      const char *caps[] = { "publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked", "authentication_failure_close" };
      for (int i = 0; i < 5; i++) { v = wss(v, caps[i]); *v++ = 't'; *v++ = 1; }
      q = wls(q, u, v - u); }
    p = wls(a, t, q - t); p = wss(p, "PLAIN");
    char sasl[256]; size_t ul = strlen(o.user), pl = strlen(o.pass);
    sasl[0] = 0; memcpy(sasl + 1, o.user, ul); sasl[1 + ul] = 0; memcpy(sasl + 2 + ul, o.pass, pl);
    p = wls(p, sasl, ul + pl + 2); p = wss(p, "en_US");
    send_method(c, 0, 0x000a000b, a, p - a);
    uint8_t *r = rpc_wait(c, 0x000a001e);
    unsigned cm = r16(r); uint32_t fm = r32(r + 2); if (!fm || fm > 131072) fm = 131072;
    c->frame_max = fm;
    p = w16(a, cm); p = w32(p, fm); p = w16(p, 0); send_method(c, 0, 0x000a001f, a, p - a);
    p = wss(a, o.vhost); p = w8(p, 0); p = w8(p, 0); send_method(c, 0, 0x000a0028, a, p - a);
    rpc_wait(c, 0x000a0029);
}
static void channel_open(Conn *c, unsigned ch) { uint8_t z = 0; send_method(c, ch, 0x0014000a, &z, 1); rpc_wait(c, 0x0014000b); }
static Conn *conn_open(void) { Conn *c = conn_open_raw(); handshake(c); channel_open(c, 1); return c; }
static void conn_close(Conn *c) {
    uint8_t a[16], *p = w16(a, 200); p = wss(p, ""); p = w16(p, 0); p = w16(p, 0);
    send_method(c, 0, 0x000a0032, a, p - a); rpc_wait(c, 0x000a0033); close(c->fd);
    free(c->in); free(c);
}

static uint8_t *qargs(uint8_t *p) {
    uint8_t t[1024], *q = t;
    if (*o.qtype) { q = wss(q, "x-queue-type"); *q++ = 'S'; q = wls(q, o.qtype, strlen(o.qtype)); }
    for (int i = 0; i < o.nargs; i++) {
        char *e; long v = strtol(o.argv[i], &e, 10); q = wss(q, o.argk[i]);
        if (*o.argv[i] && !*e) { *q++ = 'l'; q = w64(q, v); }
        else if (!strcmp(o.argv[i], "true") || !strcmp(o.argv[i], "false")) { *q++ = 't'; *q++ = o.argv[i][0] == 't'; }
        else { *q++ = 'S'; q = wls(q, o.argv[i], strlen(o.argv[i])); }
    }
    return wls(p, t, q - t);
}
static long q_declare(Conn *c, const char *q, int passive) {
    uint8_t a[2048], *p = w16(a, 0); p = wss(p, q); p = w8(p, passive | (o.durable ? 2 : 0)); p = qargs(p);
    send_method(c, 1, 0x0032000a, a, p - a); uint8_t *r = rpc_wait(c, 0x0032000b); return r32(r + 1 + r[0]);
}
static void q_bind(Conn *c, const char *q, const char *x, const char *k) {
    uint8_t a[1024], *p = w16(a, 0); p = wss(p, q); p = wss(p, x); p = wss(p, k); p = w8(p, 0); p = w32(p, 0);
    send_method(c, 1, 0x00320014, a, p - a); rpc_wait(c, 0x00320015);
}
static void q_delete(Conn *c, const char *q) {
    uint8_t a[512], *p = w16(a, 0); p = wss(p, q); p = w8(p, 0); send_method(c, 1, 0x00320028, a, p - a); rpc_wait(c, 0x00320029);
}
static void x_declare(Conn *c, const char *x, const char *type) {
    uint8_t a[512], *p = w16(a, 0); p = wss(p, x); p = wss(p, type); p = w8(p, o.durable ? 2 : 0); p = w32(p, 0);
    send_method(c, 1, 0x0028000a, a, p - a); rpc_wait(c, 0x0028000b);
}
static void x_delete(Conn *c, const char *x) {
    uint8_t a[512], *p = w16(a, 0); p = wss(p, x); p = w8(p, 0); send_method(c, 1, 0x00280014, a, p - a); rpc_wait(c, 0x00280015);
}
static const char *qname(int i) { static char b[4][280]; static int k; k = (k + 1) & 3; snprintf(b[k], 280, "%s.%05d", o.queue, i); return b[k]; }
static const char *dead_name(int i) { static char b[300]; snprintf(b, sizeof b, "%s.dead", qname(i)); return b; }
/* With --dead-letter each queue has one for dead letters, which has no arguments. */
static void q_declare_both(Conn *c, int i) {
    int n = o.nargs; char *name = strdup(dead_name(i));
    o.nargs = 0; q_declare(c, name, 0); o.nargs = n;
    o.argk[n] = "x-dead-letter-exchange"; o.argv[n] = ""; o.argk[n + 1] = "x-dead-letter-routing-key"; o.argv[n + 1] = name; o.nargs = n + 2;
    q_declare(c, qname(i), 0); o.nargs = n; free(name);
}

/* ---------- topology ---------- */
static Conn *ctl;
static int is_default(void) { return !strcmp(o.xtype, "default"); }
/* Every reader of a stream gets every message. */
static void stream_fan(void) { if (!strcmp(o.qtype, "stream") && o.queues && o.consumers > o.queues) fan = o.consumers / o.queues; }
static uint64_t queues_declared_at;                            /* so that mode topology can tell declares from binds */
static void topology(void) {
    ctl = conn_open();
    if (o.attach) { o.keep = 1; if (!strcmp(o.xtype, "fanout")) fan = o.queues; else if (is_default()) stream_fan(); return; }
    for (int i = 0; i < o.queues; i++) {
        if (!o.keep) { q_delete(ctl, qname(i)); if (o.dead) q_delete(ctl, dead_name(i)); }
        if (o.dead) q_declare_both(ctl, i); else q_declare(ctl, qname(i), 0);
    }
    queues_declared_at = now_ns();
    if (is_default()) { stream_fan(); return; }
    if (!o.keep) x_delete(ctl, o.xname);
    x_declare(ctl, o.xname, o.xtype);
    if (!strcmp(o.xtype, "fanout")) { for (int i = 0; i < o.queues; i++) q_bind(ctl, qname(i), o.xname, ""); fan = o.queues; return; }
    int b = o.bindings ? o.bindings : o.queues;
    if (!o.queues) { fan = 0; return; }
    for (int i = 0; i < b; i++) {
        char k[64];
        if (!strcmp(o.xtype, "topic")) {
            if (!strcmp(o.topic, "hash")) snprintf(k, sizeof k, "k%05d.#", i);
            else if (!strcmp(o.topic, "literal")) snprintf(k, sizeof k, "k%05d.a.log", i);
            else snprintf(k, sizeof k, "k%05d.*.log", i);
        } else snprintf(k, sizeof k, "k%05d", i);
        q_bind(ctl, qname(i % o.queues), o.xname, k);
    }
}
static void route_key(char *k, int i) {
    if (is_default()) snprintf(k, 280, "%s", qname(i % (o.queues ? o.queues : 1)));
    else if (!strcmp(o.xtype, "fanout")) *k = 0;
    else if (!strcmp(o.xtype, "topic")) snprintf(k, 280, "k%05d.a.log", i);
    else snprintf(k, 280, "k%05d", i);
}

/* ---------- publisher frames ---------- */
static size_t encode_publish(uint8_t *b, const char *x, const char *k, uint32_t frame_max, size_t *stamp, int priority, uint32_t ttl) {
    uint8_t *p = b, *s;
    p = w8(p, 1); p = w16(p, 1); s = p; p += 4; p = w32(p, 0x003c0028); p = w16(p, 0); p = wss(p, x); p = wss(p, k);
    p = w8(p, o.mandatory ? 1 : 0); w32(s, p - s - 4); p = w8(p, 0xCE);
    p = w8(p, 2); p = w16(p, 1); s = p; p += 4; p = w16(p, 60); p = w16(p, 0); p = w64(p, o.size);
    if (!strcmp(o.props, "typical")) {
        p = w16(p, 0x8000 | 0x2000 | 0x1000 | 0x0400 | 0x0080 | 0x0040);
        p = wss(p, "application/json");
        { uint8_t t[256], *q = t; q = wss(q, "trace-id"); *q++ = 'S'; q = wls(q, "4bf92f3577b34da6a3ce929d0e0e4736", 32);
          q = wss(q, "attempt"); *q++ = 'I'; q = w32(q, 1); p = wls(p, t, q - t); }
        p = w8(p, o.persistent ? 2 : 1);
        p = wss(p, "6f1c2f0e-9d3a-4b7e-8a55-0d6c7b1f4a90"); p = wss(p, "b2a4e1f7-1c7d-4c55-9f0b-3de1c09a7f21"); p = w64(p, 1700000000);
    } else if (!strcmp(o.props, "none")) p = w16(p, 0);
    else {
        p = w16(p, 0x1000 | (o.priorities ? 0x0800 : 0) | (o.delayed ? 0x2000 : o.ttl_max ? 0x0100 : 0));
        if (o.delayed) { uint8_t t[32], *q = wss(t, "x-delay"); *q++ = 'I'; q = w32(q, ttl); p = wls(p, t, q - t); }
        p = w8(p, o.persistent ? 2 : 1);
        if (o.priorities) p = w8(p, priority);
        if (o.ttl_max && !o.delayed) { char t[16]; snprintf(t, sizeof t, "%08u", ttl); p = wss(p, t); }   /* all of the same size */
    }
    w32(s, p - s - 4); p = w8(p, 0xCE);
    size_t left = o.size, max = frame_max - 8, first = 1;
    while (left) {
        size_t n = left < max ? left : max;
        p = w8(p, 3); p = w16(p, 1); p = w32(p, n); if (first) { *stamp = p - b; first = 0; }
        memset(p, 'x', n); p += n; p = w8(p, 0xCE); left -= n;
    }
    return p - b;
}
static void pub_setup(Conn *c, int idx) {
    static uint8_t *tmp; if (!tmp) tmp = malloc(o.size + 65536 + (o.size / 4000 + 2) * 16);
    int keys = o.keys ? o.keys : (is_default() ? (o.queues ? o.queues : 1) : !strcmp(o.xtype, "fanout") ? 1 : (o.bindings ? o.bindings : (o.queues ? o.queues : 1)));
    int k0 = 0; if (o.pin) { k0 = idx % keys; keys = 1; }
    char k[300]; route_key(k, k0);
    size_t unit = encode_publish(tmp, is_default() ? "" : o.xname, k, c->frame_max, &c->stamp_off, 0, 0);
    int levels = o.priorities ? o.priorities : 1, rotation = keys * levels; nkeys = keys;
    int per = o.batch / unit; if (per < 1) per = 1;
    int n = rotation; while (n < per) n += rotation;         /* whole number of rotations of keys and priorities */
    c->unit = unit; c->nunits = n; c->ring = malloc(unit * n);
    if (o.ttl_max && !ttl_of_unit) {
        nunits_of_first = n; ttl_of_unit = calloc(n, sizeof *ttl_of_unit); srand(1);
        for (int i = 0; i < n; i++) ttl_of_unit[i] = o.ttl_min + (uint32_t)(rand() / (RAND_MAX + 1.0) * (o.ttl_max - o.ttl_min + 1));
    }
    for (int i = 0; i < n; i++) {
        route_key(k, k0 + i % keys);
        size_t u = encode_publish(c->ring + i * unit, is_default() ? "" : o.xname, k, c->frame_max, &c->stamp_off, i / keys % levels, o.ttl_max ? ttl_of_unit[i] : 0);
        if (u != unit) die("uneven unit");
    }
    c->idx = idx; c->is_pub = 1; c->base = 1; c->first_number = o.first ? o.first - 1 : 0;
    if (o.confirm) {
        uint64_t m = 1; while (m < (uint64_t)o.confirm + 2) m <<= 1;
        c->cmask = m - 1; c->sent_at = calloc(m, 8); c->cdone = calloc(m, 1);
        uint8_t z = 0; send_method(c, 1, 0x0055000a, &z, 1); rpc_wait(c, 0x0055000b);
    }
}
static void con_setup(Conn *c, int idx) {
    uint8_t a[1024], *p; c->idx = idx; c->last = calloc(65536, 8); c->missing = calloc(65536, 8);
    for (int i = 0; o.first && i < 65536; i++) c->last[i] = o.first - 1;
    if (o.prefetch) { p = w32(a, 0); p = w16(p, o.prefetch); p = w8(p, 0); send_method(c, 1, 0x003c000a, a, p - a); rpc_wait(c, 0x003c000b); }
    int q = idx % (o.queues ? o.queues : 1), is_dead = o.dead && !c->rejects;
    p = w16(a, 0); p = wss(p, is_dead ? dead_name(q) : qname(q)); p = wss(p, ""); p = w8(p, o.ackn == 0 && !c->rejects ? 2 : 0);
    uint8_t t[512], *e = t;
    if (!strcmp(o.qtype, "stream")) { e = wss(e, "x-stream-offset"); *e++ = 'S'; e = wls(e, "first", 5); }
    if (o.filter) { e = wss(e, "x-filter"); *e++ = 'S'; e = wls(e, o.filter, strlen(o.filter)); }
    p = wls(p, t, e - t);
    send_method(c, 1, 0x003c0014, a, p - a); rpc_wait(c, 0x003c0015);
}
static void register_conn(Conn *c) {
    conns[nconns++] = c;
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = c }; if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
}
static void set_out(Conn *c, int on) {
    if (c->want_out == on) return;
    c->want_out = on; struct epoll_event e = { .events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c }; epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

/* ---------- hot paths ---------- */
static void flush_out(Conn *c) {
    while (c->opos < c->olen) {
        ssize_t k = write(c->fd, c->out + c->opos, c->olen - c->opos);
        if (k < 0) { if (errno == EAGAIN) { set_out(c, 1); return; } die("write: %s", strerror(errno)); }
        c->opos += k;
    }
    c->opos = c->olen = 0; if (!(c->is_pub && c->woff < c->wend)) set_out(c, 0);
}
static uint8_t *out_room(Conn *c, size_t n) {
    if (c->olen + n > c->ocap) { c->ocap = (c->olen + n) * 2 + 65536; c->out = realloc(c->out, c->ocap); }
    uint8_t *p = c->out + c->olen; c->olen += n; return p;
}
static inline void send_ack(Conn *c, uint64_t tag, int multiple) {
    uint8_t *p = out_room(c, 21);
    p = w8(p, 1); p = w16(p, 1); p = w32(p, 13); p = w32(p, 0x003c0050); p = w64(p, tag); p = w8(p, multiple); w8(p, 0xCE);
}
static inline void send_reject(Conn *c, uint64_t tag) {
    uint8_t *p = out_room(c, 21);
    p = w8(p, 1); p = w16(p, 1); p = w32(p, 13); p = w32(p, 0x003c005a); p = w64(p, tag); p = w8(p, 0); w8(p, 0xCE);
}
static inline void send_nack(Conn *c, uint64_t tag) {
    uint8_t *p = out_room(c, 21);
    p = w8(p, 1); p = w16(p, 1); p = w32(p, 13); p = w32(p, 0x003c0078); p = w64(p, tag); p = w8(p, 2); w8(p, 0xCE);   /* requeue */
}
/* With --dense a consumer gets every number of a publisher: one that was skipped is missing until it comes late, one that is
   not missing comes twice. */
static void dense_number(Conn *c) {
    uint64_t *last = &c->last[c->pub], *missing = &c->missing[c->pub];
    if (c->seq == *last + 1) { *last = c->seq; return; }
    if (c->seq > *last) { uint64_t n = c->seq - *last - 1; *missing += n; g_gap += n; *last = c->seq; }
    else if (*missing) { (*missing)--; g_gap--; g_ooo++; }
    else g_dup++;
}
static void on_delivery(Conn *c) {
    if (c->rejects) { send_reject(c, c->dtag); return; }
    if (o.nackn && !c->redelivered && c->seq % o.nackn == 0) { send_nack(c, c->dtag); return; }
    g_dlv++;
    if (ttl_of_unit) {                                         /* how long after its time a message was expired */
        uint64_t due = c->ts + ttl_of_unit[(c->seq - 1) % nunits_of_first] * 1000000ull;
        if (read_now + 1000000 < due) g_early++;
        hrec(&h_dlv, read_now > due ? read_now - due : 0);
    } else if (latency_on && read_now > c->ts) hrec(&h_dlv, read_now - c->ts);
    if (o.dense) dense_number(c);
    else if (!ttl_of_unit && !o.nackn) {                       /* in order, within a priority */
        unsigned line = o.priorities ? (c->pub * o.priorities + (c->seq - 1) / nkeys % o.priorities) & 0xffff : c->pub;
        if (c->seq <= c->last[line]) g_ooo++;
        c->last[line] = c->seq;
    }
    if (o.ackn == 1) send_ack(c, c->dtag, 0);
    else if (o.ackn > 1 && ++c->unacked >= (uint64_t)o.ackn) { send_ack(c, c->dtag, 1); c->unacked = 0; }
}
static void confirm_one(Conn *c, uint64_t t) {
    if (latency_on) hrec(&h_cfm, read_now - c->sent_at[t & c->cmask]);
    g_cfm++; c->outst--;
}
static void on_confirm(Conn *c, uint64_t tag, int multiple) {
    if (multiple) {
        if (!tag) tag = c->published;
        for (; c->base <= tag; c->base++) { if (!c->cdone[c->base & c->cmask]) confirm_one(c, c->base); c->cdone[c->base & c->cmask] = 0; }
    } else {
        if (tag < c->base || tag > c->published || c->cdone[tag & c->cmask]) die("unexpected confirm %lu", (unsigned long)tag);
        confirm_one(c, tag); c->cdone[tag & c->cmask] = 1;
        while (c->base <= c->published && c->cdone[c->base & c->cmask]) { c->cdone[c->base & c->cmask] = 0; c->base++; }
    }
}
static void parse(Conn *c) {
    uint8_t *p = c->in + c->ipos, *end = c->in + c->ilen;
    while (end - p >= 7) {
        uint32_t sz = r32(p + 3); if ((size_t)(end - p) < sz + 8ull) break;
        if (p[7 + sz] != 0xCE) die("bad frame end byte");
        switch (p[0]) {
        case 1: {
            uint32_t m = r32(p + 7);
            if (m == 0x003c003c) { uint8_t *q = p + 12 + p[11]; c->dtag = r64(q); c->redelivered = q[8]; if (q[8] && !o.nackn) g_redel++; c->first = 2; }
            else if (m == 0x003c0050) on_confirm(c, r64(p + 11), p[19] & 1);
            else if (m == 0x003c0078) { g_nack++; on_confirm(c, r64(p + 11), p[19] & 1); }
            else if (m == 0x003c0032) { g_ret++; c->first = 3; }
            else if (m == 0x003c0047) { c->dtag = r64(p + 11); c->first = 2; }
            else if (m == 0x003c0048) { c->getting = 0; }
            else if (m == 0x000a003c) { g_blocked++; c->blocked = 1; }
            else if (m == 0x000a003d) c->blocked = 0;
            else if (m == 0x000a0033) c->closed = 1;
            else if (m == 0x000a0032) explain_close(p, "connection");
            else if (m == 0x00140028) explain_close(p, "channel");
            else die("unexpected method %u.%u", m >> 16, m & 0xffff);
            break; }
        case 2:
            c->remaining = r64(p + 11);
            if (c->first == 2) { if (c->remaining != (uint64_t)o.size) g_bad++; c->first = 1; if (!c->remaining) { c->first = 0; on_delivery(c); } }
            else c->first = 4;                               /* a returned message */
            break;
        case 3:
            if (c->first == 1) { c->ts = r64(p + 7); uint64_t x = r64(p + 15); c->pub = x >> 48; c->seq = x & 0xffffffffffffull; c->first = 0; }
            c->remaining -= sz;
            if (!c->remaining && c->first != 4) on_delivery(c);
            break;
        case 8: break;
        default: die("bad frame type %d", p[0]);
        }
        p += sz + 8;
    }
    c->ipos = p - c->in;
}
static void do_read(Conn *c) {
    size_t av = c->ilen - c->ipos;
    if (!av) c->ipos = c->ilen = 0;
    else if (INCAP - c->ilen < 262144) { memmove(c->in, c->in + c->ipos, av); c->ipos = 0; c->ilen = av; }
    ssize_t k = read(c->fd, c->in + c->ilen, INCAP - c->ilen);
    if (k < 0) { if (errno == EAGAIN) return; die("read: %s", strerror(errno)); }
    if (!k) { if (c->closed) { epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL); return; } die("server closed the connection"); }
    c->ilen += k; read_now = now_ns(); parse(c);
    if (c->olen > c->opos) flush_out(c);
}
/* write the pending slice of the ring; returns 1 when it is all gone */
static int pub_push(Conn *c) {
    while (c->woff < c->wend) {
        ssize_t k = write(c->fd, c->ring + c->woff, c->wend - c->woff);
        if (k < 0) { if (errno == EAGAIN) { set_out(c, 1); return 0; } die("write: %s", strerror(errno)); }
        c->woff += k;
    }
    set_out(c, 0); return 1;
}
/* publish up to n messages; t is the stamp (0 = now) and step the spacing of stamps (rate mode) */
static int pub_some(Conn *c, long n, uint64_t t, double step) {
    if (c->woff < c->wend && !pub_push(c)) return 0;
    long lim = c->nunits - c->cursor; long per = o.batch / c->unit; if (per < 1) per = 1;
    if (n > lim) n = lim; if (n > per) n = per;
    if (o.confirm) { long w = o.confirm - (long)c->outst; if (n > w) n = w; }
    if (n <= 0) return 0;
    uint64_t now = now_ns(); if (!t) t = now;
    uint8_t *u = c->ring + c->cursor * c->unit;
    c->woff = u - c->ring;
    for (long i = 0; i < n; i++, u += c->unit) {
        c->published++;
        if (o.size >= STAMP) { w64(u + c->stamp_off, t + (uint64_t)(i * step)); w64(u + c->stamp_off + 8, ((uint64_t)c->idx << 48) | (c->first_number + c->published)); }
        if (o.confirm) c->sent_at[c->published & c->cmask] = now;
        if (due) due[c->published - 1] = t + ttl_of_unit[(c->published - 1) % nunits_of_first] * 1000000ull;
    }
    c->wend = c->woff + n * c->unit; c->cursor += n; if (c->cursor == c->nunits) c->cursor = 0;
    c->outst += o.confirm ? n : 0; g_pub += n;
    pub_push(c); return n;
}

/* With --report a line of JSON on standard error every so many seconds: what was counted so far. */
static uint64_t report_at;
static void report(uint64_t now) {
    if (!report_at) report_at = now;
    if (now < report_at) return;
    report_at += (uint64_t)(o.report * 1e9);
    fprintf(stderr, "{\"published\":%lu,\"delivered\":%lu,\"confirmed\":%lu,\"order\":%lu,\"duplicates\":%lu,\"gaps\":%lu,\"redelivered\":%lu,\"blocked\":%lu}\n",
            g_pub, g_dlv, g_cfm, g_ooo, g_dup, g_gap, g_redel, g_blocked);
}
/* one turn of the event loop; timeout in ns (<0: for ever) */
static void turn(int64_t tmo) {
    struct epoll_event ev[256]; struct timespec ts = { tmo / 1000000000, tmo % 1000000000 };
    int n = epoll_pwait2(ep, ev, 256, tmo < 0 ? NULL : &ts, NULL);
    for (int i = 0; i < n; i++) {
        Conn *c = ev[i].data.ptr;
        if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) do_read(c);
        if (ev[i].events & EPOLLOUT) { if (c->woff < c->wend) pub_push(c); if (c->woff >= c->wend && c->olen > c->opos) flush_out(c); }
    }
}
/* Run until `until` (ns) or until `total` published and everything expected has arrived. */
typedef struct { uint64_t t0; uint64_t sent; } Pace;
static int rr;
static void pump(uint64_t until, uint64_t total, Pace *pace, int npub, int wait_dlv) {
    uint64_t expect_dlv = total * fan;
    for (;;) {
        uint64_t now = now_ns();
        if (now >= until) return;
        if (o.report > 0) report(now);
        if (total && g_pub >= total) {
            int done = 1;
            for (int i = 0; i < npub && done; i++) if (conns[i]->woff < conns[i]->wend || conns[i]->outst) done = 0;
            if (done && (!wait_dlv || g_dlv >= expect_dlv)) return;
        }
        int active = 0; int64_t tmo = (int64_t)(until - now);
        if (pace) {
            uint64_t due = (uint64_t)((now - pace->t0) * (o.rate / 1e9));
            double step = 1e9 / o.rate;
            int tries = 0;
            while (pace->sent < due && tries < npub) {
                /* one message per publisher in turn, as independent clients would do */
                long n = npub == 1 ? (long)(due - pace->sent) : 1;
                int k = pub_some(conns[rr], n, pace->t0 + (uint64_t)(pace->sent * step), step);
                if (++rr == npub) rr = 0;
                if (k > 0) { pace->sent += k; tries = 0; } else tries++;
            }
            if (pace->sent >= due) { int64_t nx = (int64_t)(pace->t0 + (uint64_t)((pace->sent + 1) * step)) - (int64_t)now; if (nx < tmo) tmo = nx > 0 ? nx : 0; }
        } else {
            for (int i = 0; i < npub; i++) {
                long n = 1 << 30;
                if (total) { if (g_pub >= total) break; n = total - g_pub; }
                if (o.outstanding) { long w = o.outstanding - (long)(g_pub - g_dlv / (fan ? fan : 1)); if (w <= 0) break; if (w < n) n = w; }
                Conn *c = conns[i];
                if (pub_some(c, n, 0, 0) > 0 && c->woff >= c->wend && (!o.confirm || c->outst < (uint64_t)o.confirm)) active = 1;
            }
        }
        if (o.report > 0 && tmo > (int64_t)(o.report * 1e9)) tmo = (int64_t)(o.report * 1e9);
        turn(active ? 0 : tmo);
    }
}

/* ---------- report ---------- */
static void jhead(void) {
    printf("{\"tool\":\"amqpbench\",\"label\":\"%s\",\"port\":\"%s\",\"mode\":\"%s\",\"size\":%d,\"publishers\":%d,\"consumers\":%d,\"queues\":%d,"
           "\"exchange\":\"%s\",\"bindings\":%d,\"queue_type\":\"%s\",\"persistent\":%d,\"durable\":%d,\"confirm\":%d,\"ack_every\":%d,\"prefetch\":%d,"
           "\"outstanding\":%ld,\"rate\":%.0f,\"props\":\"%s\"",
           o.label, o.port, o.mode, o.size, o.publishers, o.consumers, o.queues, o.xtype, o.bindings, o.qtype, o.persistent, o.durable, o.confirm,
           o.ackn, o.prefetch, o.outstanding, o.rate, o.props);
}
static void jhist(const char *name, Hist *h) {
    if (!h->n) return;
    printf(",\"%s_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", name, hpct(h, .5) / 1e3, hpct(h, .9) / 1e3,
           hpct(h, .99) / 1e3, hpct(h, .999) / 1e3, h->max / 1e3);
}
static void jfaults(void) {
    printf(",\"faults\":{\"nacks\":%lu,\"returns\":%lu,\"order\":%lu,\"bad_size\":%lu,\"redelivered\":%lu,\"blocked\":%lu,\"duplicates\":%lu,\"gaps\":%lu,\"early\":%lu,\"depth\":%lu,\"lost\":%ld}",
           g_nack, g_ret, g_ooo, g_bad, g_redel, g_blocked, g_dup, g_gap, g_early, g_depth, g_lost);
}

/* ---------- modes ---------- */
static void open_clients(int npub, int ncon) {
    int np0 = nconns;
    for (int i = 0; i < npub; i++) { Conn *c = conn_open(); pub_setup(c, i); register_conn(c); }
    (void)np0;
    for (int i = 0; o.dead && !o.ttl_max && i < ncon; i++) { Conn *c = conn_open(); c->rejects = 1; con_setup(c, i); register_conn(c); }
    for (int i = 0; i < ncon; i++) { Conn *c = conn_open(); con_setup(c, i); register_conn(c); if (c->ilen > c->ipos) { read_now = now_ns(); parse(c); flush_out(c); } }
}
/* Stop publishing, close publishers in order and keep consuming until nothing more comes; returns messages missing. */
static long settle(int npub, int wait_dlv) {
    uint64_t last = 0, mark = now_ns(), t0 = mark; int sent[MAXCONN] = { 0 };
    for (;;) {
        uint64_t now = now_ns(); int open = 0;
        for (int i = 0; i < npub; i++) {
            Conn *c = conns[i]; if (c->closed) continue;
            open++;
            if (!sent[i] && c->woff >= c->wend && !c->outst) {
                uint8_t *p = out_room(c, 19); p = w8(p, 1); p = w16(p, 0); p = w32(p, 11); p = w32(p, 0x000a0032); p = w16(p, 200);
                p = w8(p, 0); p = w32(p, 0); w8(p, 0xCE); flush_out(c); sent[i] = 1;
            }
        }
        if (g_dlv + g_cfm != last) { last = g_dlv + g_cfm; mark = now; }
        if (!open && (!wait_dlv || g_dlv >= g_pub * fan || now - mark > 2000000000ull)) break;
        if (now - t0 > 120000000000ull) { fprintf(stderr, "amqpbench: broker did not settle in 120 s\n"); break; }
        turn(50000000);
    }
    return wait_dlv ? (long)(g_pub * fan) - (long)g_dlv : 0;
}
static void cleanup(void) {
    for (int i = 0; i < nconns; i++) close(conns[i]->fd);
    if (o.keep) return;
    for (int i = 0; i < o.queues; i++) { q_delete(ctl, qname(i)); if (o.dead) q_delete(ctl, dead_name(i)); }
    if (!is_default()) x_delete(ctl, o.xname);
}
/* How many messages wait in the queues that are there. */
static long waiting(void) { long n = 0; for (int i = 0; i < o.queues; i++) n += q_declare(ctl, qname(i), 1); return n; }
static void mode_run(void) {
    long rss0 = brss(); topology(); open_clients(o.publishers, o.consumers);
    Pace pc = { now_ns(), 0 }, *pace = o.rate > 0 ? &pc : NULL;
    uint64_t t0, t1; double c0, b0, c1, b1, s0, s1, st0, st1; uint64_t p0 = 0, d0 = 0, f0 = 0;
    if (o.messages) {
        latency_on = 1; t0 = now_ns(); c0 = mycpu(); b0 = bcpu(); s0 = sys_busy(&st0);
        pump(t0 + (uint64_t)(o.timeout * 1e9), o.messages, pace, o.publishers, o.consumers > 0);
        t1 = now_ns();
    } else {
        uint64_t s = now_ns(); pump(s + (uint64_t)(o.warmup * 1e9), 0, pace, o.publishers, 0);
        latency_on = 1; t0 = now_ns(); c0 = mycpu(); b0 = bcpu(); s0 = sys_busy(&st0); p0 = g_pub; d0 = g_dlv; f0 = g_cfm;
        pump(t0 + (uint64_t)(o.duration * 1e9), 0, pace, o.publishers, 0);
        t1 = now_ns();
    }
    c1 = mycpu(); b1 = bcpu(); s1 = sys_busy(&st1); long rss1 = brss();
    double dt = (t1 - t0) / 1e9, np = g_pub - p0, nd = g_dlv - d0, nc = g_cfm - f0, unit = nd > np ? nd : np;
    long backlog = (long)(g_pub * fan) - (long)g_dlv; latency_on = 0;
    if (o.publishers) g_lost = settle(o.publishers, o.consumers > 0);
    if (o.depth >= 0) g_depth = labs(waiting() - o.depth);
    jhead();
    printf(",\"seconds\":%.3f,\"published\":%.0f,\"delivered\":%.0f,\"confirmed\":%.0f,\"pub_per_s\":%.0f,\"dlv_per_s\":%.0f,\"cfm_per_s\":%.0f,\"dlv_mb_per_s\":%.1f,\"backlog\":%ld",
           dt, np, nd, nc, np / dt, nd / dt, nc / dt, nd * o.size / dt / 1e6, o.consumers ? backlog : 0);
    printf(",\"client_cpu\":%.2f", (c1 - c0) / dt);
    if (o.npids) printf(",\"broker_cpu\":%.2f,\"broker_cpu_us_per_msg\":%.3f,\"broker_rss_before\":%ld,\"broker_rss_after\":%ld", (b1 - b0) / dt, unit ? (b1 - b0) * 1e6 / unit : 0, rss0, rss1);
    printf(",\"foreign_cpu\":%.2f,\"steal\":%.2f", (s1 - s0 - (c1 - c0) - (b1 - b0)) / dt, (st1 - st0) / dt);
    jhist("latency", &h_dlv); jhist("confirm", &h_cfm); jfaults(); printf("}\n"); fflush(stdout);
    cleanup();
}
/* Part "fill" leaves the queues full, part "drain" finds them so; --attach keeps what is there. */
static void drain_fill(void) {
    long held = o.keep ? waiting() : 0, want = held + o.messages * fan;
    usleep(300000);
    long rss0 = brss(); double b0 = bcpu(), c0 = mycpu(), st, s0 = sys_busy(&st);
    open_clients(o.publishers, 0);
    uint64_t t0 = now_ns(); pump(t0 + (uint64_t)(o.timeout * 1e9), o.messages, NULL, o.publishers, 0);
    for (long n; (n = waiting()) < want;) {                 /* barrier: until the broker holds them all */
        usleep(20000); if (now_ns() - t0 > o.timeout * 1e9) die("queue holds %ld of %ld after %.0f s", n, want, o.timeout);
    }
    uint64_t t1 = now_ns(); double b1 = bcpu(), c1 = mycpu(), s1 = sys_busy(&st), dt = (t1 - t0) / 1e9; usleep(500000); long rss1 = brss();
    settle(o.publishers, 0); for (int i = 0; i < nconns; i++) close(conns[i]->fd);
    close(ep); ep = epoll_create1(0); nconns = 0; latency_on = 0;
    printf(",\"fill_s\":%.3f,\"fill_per_s\":%.0f,\"fill_foreign_cpu\":%.2f", dt, o.messages * fan / dt, (s1 - s0 - (c1 - c0) - (b1 - b0)) / dt);
    if (o.npids) printf(",\"rss_before\":%ld,\"rss_full\":%ld,\"bytes_per_msg\":%.1f,\"fill_broker_cpu_s\":%.2f,\"fill_cpu_us_per_msg\":%.3f",
                        rss0, rss1, (double)(rss1 - rss0) / (o.messages * fan), b1 - b0, (b1 - b0) * 1e6 / (o.messages * fan));
}
static void drain_drain(void) {
    uint64_t t0 = now_ns(); double b0 = bcpu(), c0 = mycpu(), st, s0 = sys_busy(&st);
    open_clients(0, o.consumers ? o.consumers : 1);
    g_pub = o.messages; pump(t0 + (uint64_t)(o.timeout * 1e9), o.messages, NULL, 0, 1);
    uint64_t t1 = now_ns(); double b1 = bcpu(), c1 = mycpu(), s1 = sys_busy(&st), dt = (t1 - t0) / 1e9;
    for (int i = 0; i < nconns; i++) flush_out(conns[i]);   /* the last acks */
    usleep(500000); long rss1 = brss();
    g_lost = (long)(o.messages * fan) - (long)g_dlv;
    printf(",\"drain_s\":%.3f,\"drain_per_s\":%.0f,\"drain_foreign_cpu\":%.2f,\"left\":%ld", dt, g_dlv / dt, (s1 - s0 - (c1 - c0) - (b1 - b0)) / dt, waiting());
    if (o.npids) printf(",\"rss_after\":%ld,\"drain_broker_cpu_s\":%.2f,\"drain_cpu_us_per_msg\":%.3f", rss1, b1 - b0, (b1 - b0) * 1e6 / (o.messages * fan));
}
static void mode_drain(void) {
    int fill = strcmp(o.part, "drain"), drain = strcmp(o.part, "fill");
    if (!o.messages) o.messages = 1000000;
    if (!fill || !drain) o.keep = 1;
    topology(); jhead(); printf(",\"messages\":%ld", o.messages);
    if (fill) drain_fill();
    if (drain) drain_drain();
    jfaults(); printf("}\n"); fflush(stdout); cleanup();
}
static void mode_count(void) { ctl = conn_open(); long n = waiting(); jhead(); printf(",\"waiting\":%ld}\n", n); fflush(stdout); }
/* Publish --messages with random expirations and watch them go: by the queue's depth, and with --dead-letter one by one. */
typedef struct { uint64_t t, confirmed; long depth, rss; } Sample;
static int by_time(const void *a, const void *b) { uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b; return x < y ? -1 : x > y; }
static void mode_expiry(void) {
    if (!o.ttl_max || !o.messages || !o.confirm) die("expiry needs --expiration or --delay, --messages and --confirm");
    double every = o.report > 0 ? o.report : 0.1; long room = (long)(o.timeout / every) + 2, n = 0; o.report = 0; o.publishers = 1;
    Sample *samples = calloc(room, sizeof *samples); due = malloc(o.messages * sizeof *due);
    topology(); long rss0 = brss(); open_clients(1, o.dead || o.delayed ? o.consumers : 0);
    uint64_t t0 = now_ns(), limit = t0 + (uint64_t)(o.timeout * 1e9), published_at = 0;
    for (uint64_t next = t0;;) {
        next += (uint64_t)(every * 1e9);
        if (g_cfm < (uint64_t)o.messages) pump(next < limit ? next : limit, o.messages, NULL, 1, 0);
        while (now_ns() < next) turn((int64_t)(next - now_ns()) > 0 ? (int64_t)(next - now_ns()) : 0);
        Sample *s = &samples[n++]; s->confirmed = g_cfm; s->depth = waiting(); s->t = now_ns(); s->rss = brss();
        if (!published_at && g_cfm >= (uint64_t)o.messages) published_at = s->t;
        if (s->confirmed >= (uint64_t)o.messages && !s->depth && (!(o.dead || o.delayed) || g_dlv >= (uint64_t)o.messages)) break;
        if (s->t >= limit || n == room) break;
    }
    /* `gone` messages are gone: the next one was due at due[gone]. How long ago is that? */
    qsort(due, g_pub, sizeof *due, by_time);
    Hist lag = { 0 }; uint64_t end = samples[n - 1].t;
    for (long i = 0; i < n; i++) {
        uint64_t gone = samples[i].confirmed > (uint64_t)samples[i].depth ? samples[i].confirmed - samples[i].depth : 0;
        if (samples[i].t < due[0]) continue;
        hrec(&lag, gone < g_pub && due[gone] < samples[i].t ? samples[i].t - due[gone] : 0);
        if (gone >= g_pub) break;
    }
    g_lost = o.dead || o.delayed ? o.messages - (long)g_dlv : 0; if (samples[n - 1].depth) g_depth = samples[n - 1].depth;
    jhead(); printf(",\"messages\":%ld,\"publish_s\":%.3f,\"last_due_s\":%.3f,\"end_s\":%.3f,\"arrived\":%lu,\"rss_before\":%ld,\"rss_peak\":%ld", o.messages,
                    published_at ? (published_at - t0) / 1e9 : 0.0, (due[g_pub - 1] - t0) / 1e9, (end - t0) / 1e9, g_dlv, rss0, bmemory("VmHWM"));
    jhist("lag", &lag); jhist("late", &h_dlv); printf(",\"samples\":[");
    for (long i = 0, step = n / 60 + 1; i < n; i += step) {
        uint64_t past = 0, high = g_pub; while (past < high) { uint64_t m = (past + high) / 2; if (due[m] <= samples[i].t) past = m + 1; else high = m; }
        printf("%s{\"s\":%.2f,\"confirmed\":%lu,\"due\":%lu,\"depth\":%ld,\"rss\":%ld}", i ? "," : "", (samples[i].t - t0) / 1e9, samples[i].confirmed, past, samples[i].depth, samples[i].rss);
    }
    printf("]"); jfaults(); printf("}\n"); fflush(stdout); cleanup();
}
/* Keep everything open until whoever started us closes our standard input. */
static void hold(void) { char b[64]; fflush(stdout); if (o.hold) while (read(0, b, sizeof b) > 0) {} }
static void mode_conns(void) {
    struct rlimit rl; getrlimit(RLIMIT_NOFILE, &rl); rl.rlim_cur = rl.rlim_max; setrlimit(RLIMIT_NOFILE, &rl);
    Conn *w = conn_open(); conn_close(w); usleep(200000);
    long rss0 = brss(); double b0 = bcpu(); uint64_t t0 = now_ns(); int *fds = malloc(o.count * sizeof *fds);
    for (int i = 0; i < o.count; i++) {
        Conn *c = conn_open_raw(); handshake(c); for (int k = 1; k <= o.channels; k++) channel_open(c, k);
        fds[i] = c->fd; free(c->in); free(c);
    }
    double dt = (now_ns() - t0) / 1e9; double b1 = bcpu(); sleep(2); long rss1 = brss();
    jhead(); printf(",\"count\":%d,\"channels\":%d,\"open_per_s\":%.0f,\"rss_before\":%ld,\"rss_after\":%ld,\"bytes_per_conn\":%.0f,\"broker_cpu_ms_per_conn\":%.3f}\n",
                    o.count, o.channels, o.count / dt, rss0, rss1, (double)(rss1 - rss0) / o.count, (b1 - b0) * 1e3 / o.count);
    hold();
}
/* Declare --queues and --bindings one request at a time, as clients do, and leave them there. */
static void mode_topology(void) {
    int b = is_default() ? 0 : !strcmp(o.xtype, "fanout") || !o.bindings ? o.queues : o.bindings;
    Conn *w = conn_open(); conn_close(w); usleep(200000);
    long rss0 = brss(); double b0 = bcpu(); o.keep = 1; uint64_t t0 = now_ns(); topology(); uint64_t t1 = now_ns(); double b1 = bcpu();
    sleep(1); long rss1 = brss(); double dq = (queues_declared_at - t0) / 1e9, db = (t1 - queues_declared_at) / 1e9;
    jhead(); printf(",\"declare_s\":%.3f,\"bind_s\":%.3f,\"declare_per_s\":%.0f,\"bind_per_s\":%.0f,\"bound\":%d,\"rss_before\":%ld,\"rss_after\":%ld,\"broker_cpu_s\":%.2f}\n",
                    dq, db, o.queues / dq, b ? b / db : 0, b, rss0, rss1, b1 - b0);
    hold();
}
static void mode_churn(void) {
    double b0 = bcpu(); uint64_t t0 = now_ns(), n = 0; while (now_ns() - t0 < o.duration * 1e9) { conn_close(conn_open()); n++; }
    double dt = (now_ns() - t0) / 1e9; jhead(); printf(",\"conn_per_s\":%.0f,\"broker_cpu_ms_per_conn\":%.3f}\n", n / dt, (bcpu() - b0) * 1e3 / n);
}
/* The physical limit: a child process that only reads on one socket and writes the same bytes on another. */
static void mode_loopback(void) {
    int sink = !strcmp(o.mode, "sink");
    int l = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }; socklen_t al = sizeof a;
    if (bind(l, (void *)&a, al) || listen(l, 8)) die("listen"); getsockname(l, (void *)&a, &al);
    static char port[8]; snprintf(port, 8, "%d", ntohs(a.sin_port)); o.port = port; o.host = "127.0.0.1";
    pid_t kid = fork();
    if (!kid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int in = accept(l, 0, 0), out = accept(l, 0, 0), one = 1; setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        char *b = malloc(262144); ssize_t n;
        while ((n = read(in, b, 262144)) > 0) if (!sink) for (char *p = b; n;) { ssize_t k = write(out, p, n); if (k <= 0) _exit(0); p += k; n -= k; }
        _exit(0);
    }
    o.pids[0] = kid; o.npids = 1;
    Conn *p = conn_open_raw(), *c = conn_open_raw(); p->frame_max = 131072; o.confirm = 0; pub_setup(p, 0); register_conn(p); register_conn(c);
    uint64_t bytes = 0, p0 = 0, t0 = 0, start = now_ns(); double c0 = 0, b0 = 0; int warm = 1; char *buf = malloc(1 << 20);
    for (;;) {
        uint64_t now = now_ns();
        if (warm && now - start > o.warmup * 1e9) { warm = 0; t0 = now; bytes = 0; p0 = g_pub; c0 = mycpu(); b0 = bcpu(); }
        if (!warm && now - t0 > o.duration * 1e9) break;
        int act = pub_some(p, 1 << 30, 0, 0) > 0 && p->woff >= p->wend;
        struct epoll_event ev[4]; int n = epoll_wait(ep, ev, 4, act ? 0 : 100);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == c) { ssize_t k = read(c->fd, buf, 1 << 20); if (k > 0) bytes += k; }
            else if (ev[i].events & EPOLLOUT) pub_push(p);
        }
    }
    double dt = (now_ns() - t0) / 1e9, msgs = sink ? (double)(g_pub - p0) : (double)bytes / p->unit;
    jhead(); printf(",\"unit_bytes\":%zu,\"msg_per_s\":%.0f,\"mb_per_s\":%.1f,\"client_cpu\":%.2f,\"peer_cpu\":%.2f}\n", p->unit, msgs / dt,
                    msgs * p->unit / dt / 1e6, (mycpu() - c0) / dt, (bcpu() - b0) / dt);
    fflush(stdout); kill(kid, SIGKILL); waitpid(kid, 0, 0);
}
/* Append + fdatasync rate: --size bytes per record, --group records per sync. */
static void mode_disk(void) {
    char f[4096]; snprintf(f, sizeof f, "%s/amqpbench.%d.tmp", o.dir, getpid());
    int fd = open(f, O_CREAT | O_RDWR | O_TRUNC, 0600); if (fd < 0) die("%s: %s", f, strerror(errno));
    size_t n = (size_t)o.size * o.group; char *b = malloc(n); memset(b, 'x', n); size_t lim = (size_t)o.prealloc << 20, off = 0;
    if (lim) { char *z = calloc(1, 1 << 20); for (int i = 0; i < o.prealloc; i++) if (write(fd, z, 1 << 20) != 1 << 20) die("prealloc"); fsync(fd); free(z); }
    uint64_t t0 = now_ns(), k = 0; double c0 = mycpu();
    while (now_ns() - t0 < o.duration * 1e9) {
        uint64_t s = now_ns(); if (lim && off + n > lim) off = 0;
        if (pwrite(fd, b, n, off) != (ssize_t)n) die("pwrite: %s", strerror(errno));
        off += n; if (!o.nosync && fdatasync(fd)) die("fdatasync"); hrec(&h_dlv, now_ns() - s); k++;
        if (!lim && off > (4ull << 30)) { off = 0; if (ftruncate(fd, 0)) die("truncate"); }
    }
    double dt = (now_ns() - t0) / 1e9; jhead();
    printf(",\"group\":%d,\"prealloc_mb\":%d,\"sync\":%d,\"sync_per_s\":%.0f,\"records_per_s\":%.0f,\"mb_per_s\":%.1f,\"cpu\":%.2f", o.group, o.prealloc, !o.nosync, k / dt,
           k * (double)o.group / dt, k * (double)n / dt / 1e6, (mycpu() - c0) / dt);
    jhist("sync", &h_dlv); printf("}\n"); fflush(stdout); close(fd); unlink(f);
}

static void usage(void) {
    puts("amqpbench [options]            one JSON object on stdout; faults must all be 0\n"
         "  --mode run|drain|expiry|count|conns|topology|churn|sink|relay|disk   (sink/relay: loopback TCP limit; disk: append+fdatasync)\n"
         "  --host H --port P --user U --pass P --vhost V --label TEXT --broker-pid PID[,PID]  (adds broker CPU and RSS)\n"
         "  --publishers N --consumers M --queues Q --queue NAME --size BYTES (>=16) --props none|min|typical\n"
         "  --messages N | --duration S [--warmup S]     --timeout S     --rate R  (total msg/s; latency from the intended send time)\n"
         "  --outstanding W   stop publishing while more than W messages are undelivered (steady state; 1 = ping-pong)\n"
         "  --persistent --durable --queue-type classic|quorum|stream --arg key=value (queue.declare argument, repeatable)\n"
         "  --confirm W       publisher confirms, at most W in flight per publisher\n"
         "  --ack N           0 = no-ack consumers, 1 = ack each, N = ack multiple every N      --prefetch P\n"
         "  --exchange default|direct|fanout|topic [--exchange-name X] --bindings B --keys K --topic star|hash|literal\n"
         "  --mandatory --pin (publisher i uses key i only) --keep (do not delete or recreate queues)\n"
         "  --attach (use queues and exchange as they are: declare and delete nothing)   --batch BYTES per write\n"
         "  run:   publish+consume; --consumers 0 publishes only, --publishers 0 consumes only (with --keep on both sides)\n"
         "  drain: publish --messages with no consumer, wait until the queue holds all, then consume all; --part fill|drain does one half\n"
         "  --priorities N    priorities 0 to N-1 in turn; order is checked within each\n"
         "  --filter TEXT     x-filter of the consumers, a selector that all messages match\n"
         "  --dead-letter     consumers reject each message, and as many consume the dead letters\n"
         "  --expect-depth N  a fault unless N messages wait at the end (run)\n"
         "  expiry: publish --messages with --expiration MIN:MAX (ms) and --confirm W, without a consumer, until all are gone; how late each went\n"
         "          with --dead-letter, and how late the depth shows it; a sample every --report S\n"
         "          with --delay MIN:MAX (ms, header x-delay) instead: until all were delivered; how late each was\n"
         "  --nack N          consumers nack each Nth message when it comes first, with requeue (run)\n"
         "  --dense (a consumer gets every number of its publishers: counts gaps and duplicates)   --first N (number of the first message)\n"
         "  --report S        a line of JSON on standard error every S seconds\n"
         "  count: how many messages wait in --queues of --queue NAME\n"
         "  conns: --count idle connections with --channels each; churn: open+close in a row\n"
         "  topology: declare --queues and --bindings and leave them; --hold (also conns): stay connected until standard input closes\n"
         "  disk:  --dir D --size BYTES --group RECORDS per sync [--prealloc MB] [--nosync]");
    exit(0);
}
int main(int ac, char **av) {
    signal(SIGPIPE, SIG_IGN); setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    static struct option lo[] = {
#define A(n, k) { n, required_argument, 0, k }
#define F(n, k) { n, no_argument, 0, k }
        A("mode", 1), A("host", 2), A("port", 3), A("user", 4), A("pass", 5), A("vhost", 6), A("label", 7), A("broker-pid", 8), A("publishers", 9),
        A("consumers", 10), A("queues", 11), A("queue", 12), A("size", 13), A("props", 14), A("messages", 15), A("duration", 16), A("warmup", 17),
        A("timeout", 18), A("rate", 19), A("outstanding", 20), F("persistent", 21), F("durable", 22), A("queue-type", 23), A("arg", 24), A("confirm", 25),
        A("ack", 26), A("prefetch", 27), A("exchange", 28), A("exchange-name", 29), A("bindings", 30), A("keys", 31), A("topic", 32), F("mandatory", 33),
        F("pin", 34), F("keep", 35), A("batch", 36), A("count", 37), A("channels", 38), A("dir", 39), A("group", 40), A("prealloc", 41), F("nosync", 42), F("help", 43), F("attach", 44), F("hold", 45),
        A("part", 46), F("dense", 47), A("first", 48), A("report", 49), A("priorities", 50), F("dead-letter", 51), A("expect-depth", 52), A("expiration", 53),
        A("delay", 54), A("nack", 55), A("filter", 56), { 0 } };
    int k;
    while ((k = getopt_long(ac, av, "", lo, 0)) != -1) switch (k) {
        case 1: o.mode = optarg; break; case 2: o.host = optarg; break; case 3: o.port = optarg; break; case 4: o.user = optarg; break;
        case 5: o.pass = optarg; break; case 6: o.vhost = optarg; break; case 7: o.label = optarg; break;
        case 8: for (char *s = strtok(optarg, ","); s && o.npids < 32; s = strtok(0, ",")) o.pids[o.npids++] = atoi(s); break;
        case 9: o.publishers = atoi(optarg); break; case 10: o.consumers = atoi(optarg); break; case 11: o.queues = atoi(optarg); break;
        case 12: o.queue = optarg; break; case 13: o.size = atoi(optarg); break; case 14: o.props = optarg; break; case 15: o.messages = atol(optarg); break;
        case 16: o.duration = atof(optarg); break; case 17: o.warmup = atof(optarg); break; case 18: o.timeout = atof(optarg); break;
        case 19: o.rate = atof(optarg); break; case 20: o.outstanding = atol(optarg); break; case 21: o.persistent = 1; break; case 22: o.durable = 1; break;
        case 23: o.qtype = optarg; break;
        case 24: { char *e = strchr(optarg, '='); if (!e || o.nargs == 16) die("--arg key=value"); *e = 0; o.argk[o.nargs] = optarg; o.argv[o.nargs++] = e + 1; break; }
        case 25: o.confirm = atoi(optarg); break; case 26: o.ackn = atoi(optarg); break; case 27: o.prefetch = atoi(optarg); break;
        case 28: o.xtype = optarg; break; case 29: o.xname = optarg; break; case 30: o.bindings = atoi(optarg); break; case 31: o.keys = atoi(optarg); break;
        case 32: o.topic = optarg; break; case 33: o.mandatory = 1; break; case 34: o.pin = 1; break; case 35: o.keep = 1; break; case 36: o.batch = atol(optarg); break;
        case 37: o.count = atoi(optarg); break; case 38: o.channels = atoi(optarg); break; case 39: o.dir = optarg; break; case 40: o.group = atoi(optarg); break;
        case 41: o.prealloc = atoi(optarg); break; case 42: o.nosync = 1; break; case 43: usage(); break; case 44: o.attach = 1; break; case 45: o.hold = 1; break;
        case 46: o.part = optarg; break; case 47: o.dense = 1; break; case 48: o.first = atol(optarg); break; case 49: o.report = atof(optarg); break;
        case 56: o.filter = optarg; if (strlen(o.filter) > 400) die("--filter has 400 characters at most"); break;
        case 50: o.priorities = atoi(optarg); break; case 51: o.dead = 1; break; case 52: o.depth = atol(optarg); break;
        case 53: if (sscanf(optarg, "%d:%d", &o.ttl_min, &o.ttl_max) != 2 || o.ttl_min < 0 || o.ttl_max < o.ttl_min || !o.ttl_max) die("--expiration MIN:MAX"); break;
        case 54: if (sscanf(optarg, "%d:%d", &o.ttl_min, &o.ttl_max) != 2 || o.ttl_min < 0 || o.ttl_max < o.ttl_min || !o.ttl_max) die("--delay MIN:MAX"); o.delayed = 1; break;
        case 55: o.nackn = atoi(optarg); break;
        default: return 2;
    }
    if (optind < ac) die("unexpected argument %s", av[optind]);
    if (o.size < STAMP && strcmp(o.mode, "disk")) die("--size must be at least %d", STAMP);
    if ((o.priorities || o.ttl_max) && strcmp(o.props, "min")) die("--priorities, --expiration and --delay need --props min");
    if (o.publishers + (o.dead ? 2 : 1) * o.consumers > MAXCONN) die("at most %d connections", MAXCONN);
    if (!*o.queue) { static char qn[32]; snprintf(qn, sizeof qn, "bench%d", getpid()); o.queue = qn; }
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (!strcmp(o.mode, "run")) mode_run(); else if (!strcmp(o.mode, "drain")) mode_drain(); else if (!strcmp(o.mode, "expiry")) mode_expiry(); else if (!strcmp(o.mode, "count")) mode_count(); else if (!strcmp(o.mode, "conns")) mode_conns();
    else if (!strcmp(o.mode, "topology")) mode_topology(); else if (!strcmp(o.mode, "churn")) mode_churn(); else if (!strcmp(o.mode, "sink") || !strcmp(o.mode, "relay")) mode_loopback();
    else if (!strcmp(o.mode, "disk")) mode_disk(); else die("unknown mode %s", o.mode);
    return 0;
}
