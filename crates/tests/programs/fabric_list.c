/* What fabtests tries of connected endpoints, over the provider: fabric_list serve|connect NODE, both at once; or
   serve-killed and be-killed NODE, which somebody then kills. Needs no knowledge of OpenTOE. */
#include <errno.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "4711"
#define LIMIT_MS 60000
#define LARGEST (1 << 20)
#define KEY 42

#define MUST(what) do { long got_ = (long)(what); if (got_ < 0) fail(#what, got_, __LINE__); } while (0)
#define CHECK(what) do { if (!(what)) fail(#what, 0, __LINE__); } while (0)

static int is_server;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_pep *pep;
static uint8_t *out, *in, *area;
static struct fid_mr *region;

static void fail(const char *what, long got, int line)
{
    fprintf(stderr, "%s, line %d: %s: %ld %s\n", is_server ? "server" : "client", line, what, got, fi_strerror((int)-got));
    exit(1);
}

/* An endpoint and its queues. */
struct end {
    struct fid_ep *ep;
    struct fid_cq *tx, *rx;
};

static struct end open_end(struct fi_info *with, uint64_t selective)
{
    struct end end;
    struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD, .size = 128 };
    MUST(fi_cq_open(domain, &attr, &end.tx, NULL));
    MUST(fi_cq_open(domain, &attr, &end.rx, NULL));
    MUST(fi_endpoint(domain, with, &end.ep, &end));
    MUST(fi_ep_bind(end.ep, &eq->fid, 0));
    MUST(fi_ep_bind(end.ep, &end.tx->fid, FI_TRANSMIT | selective));
    MUST(fi_ep_bind(end.ep, &end.rx->fid, FI_RECV));
    MUST(fi_enable(end.ep));
    return end;
}

static void close_end(struct end *end)
{
    MUST(fi_close(&end->ep->fid));
    MUST(fi_close(&end->tx->fid));
    MUST(fi_close(&end->rx->fid));
}

struct event {
    struct fi_eq_cm_entry entry;
    char data[300];
};

/* The next event, which has to be of this kind; gives the length of what the peer says with it. */
static size_t next_event(uint32_t wanted, struct event *event)
{
    uint32_t kind;
    ssize_t len = fi_eq_sread(eq, &kind, event, sizeof(*event), LIMIT_MS, 0);
    if (len == -FI_EAVAIL) {
        struct fi_eq_err_entry error = { 0 };
        MUST(fi_eq_readerr(eq, &error, 0));
        fail("fi_eq_sread", -error.err, __LINE__);
    }
    MUST(len);
    CHECK(kind == wanted);
    return (size_t)len - sizeof(event->entry);
}

static struct fi_cq_data_entry next_done(struct fid_cq *cq)
{
    struct fi_cq_data_entry entry;
    ssize_t got = fi_cq_sread(cq, &entry, 1, NULL, LIMIT_MS);
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = { 0 };
        MUST(fi_cq_readerr(cq, &error, 0));
        fail("fi_cq_sread", -error.err, __LINE__);
    }
    MUST(got);
    CHECK(got == 1);
    return entry;
}

static struct fi_cq_err_entry next_failed(struct fid_cq *cq)
{
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error = { 0 };
    CHECK(fi_cq_sread(cq, &entry, 1, NULL, LIMIT_MS) == -FI_EAVAIL);
    CHECK(fi_cq_readerr(cq, &error, 0) == 1);
    return error;
}

static struct end connected(uint64_t selective)
{
    struct event event;
    struct end end;
    if (is_server) {
        CHECK(next_event(FI_CONNREQ, &event) == 5 && memcmp(event.data, "hello", 5) == 0);
        CHECK(event.entry.fid == &pep->fid && event.entry.info->dest_addr);
        end = open_end(event.entry.info, selective);
        MUST(fi_accept(end.ep, "welcome", 7));
        fi_freeinfo(event.entry.info);
        next_event(FI_CONNECTED, &event);
    } else {
        end = open_end(info, selective);
        MUST(fi_connect(end.ep, info->dest_addr, "hello", 5));
        CHECK(next_event(FI_CONNECTED, &event) == 7 && memcmp(event.data, "welcome", 7) == 0);
        char peer[64];
        size_t len = sizeof(peer);
        MUST(fi_getpeer(end.ep, peer, &len));
        CHECK(len == info->dest_addrlen && memcmp(peer, info->dest_addr, len) == 0);
    }
    CHECK(event.entry.fid == &end.ep->fid);
    return end;
}

static void rejected(void)
{
    struct event event;
    if (is_server) {
        next_event(FI_CONNREQ, &event);
        MUST(fi_reject(pep, event.entry.info->handle, "no", 2));
        fi_freeinfo(event.entry.info);
        return;
    }
    struct end end = open_end(info, 0);
    MUST(fi_connect(end.ep, info->dest_addr, NULL, 0));
    uint32_t kind;
    CHECK(fi_eq_sread(eq, &kind, &event, sizeof(event), LIMIT_MS, 0) == -FI_EAVAIL);
    struct fi_eq_err_entry error = { 0 };
    MUST(fi_eq_readerr(eq, &error, 0));
    CHECK(error.err == FI_ECONNREFUSED && error.fid == &end.ep->fid);
    CHECK(error.err_data_size == 2 && memcmp(error.err_data, "no", 2) == 0);
    CHECK(fi_send(end.ep, out, 1, NULL, 0, NULL) == -FI_ENOTCONN);
    close_end(&end);
}

static void fill(uint8_t *bytes, size_t len, int seed)
{
    for (size_t at = 0; at < len; at++)
        bytes[at] = (uint8_t)(at * 31 + (size_t)seed * 7 + (at >> 8));
}

static void check(const uint8_t *bytes, size_t len, int seed)
{
    for (size_t at = 0; at < len; at++)
        CHECK(bytes[at] == (uint8_t)(at * 31 + (size_t)seed * 7 + (at >> 8)));
}

static void send_one(struct end *end, size_t len, int seed)
{
    fill(out, len, seed);
    MUST(fi_send(end->ep, out, len, NULL, 0, out));
    struct fi_cq_data_entry done = next_done(end->tx);
    CHECK(done.op_context == out && done.flags & FI_SEND);
}

static void receive_one(struct end *end, size_t len, int seed)
{
    MUST(fi_recv(end->ep, in, LARGEST, NULL, 0, in));
    struct fi_cq_data_entry done = next_done(end->rx);
    CHECK(done.op_context == in && done.len == len && done.flags & FI_RECV);
    check(in, len, seed);
}

/* Both are here. */
static void meet(struct end *end)
{
    if (is_server) {
        send_one(end, 1, 99);
        receive_one(end, 1, 98);
    } else {
        receive_one(end, 1, 99);
        send_one(end, 1, 98);
    }
}

static void pingpong(struct end *end)
{
    int seed = 0;
    for (size_t len = 0; len <= LARGEST; len = len ? len * 2 : 1)
        for (int turn = 0; turn < 20; turn++, seed++) {
            if ((turn & 1) == is_server)
                send_one(end, len, seed);
            else
                receive_one(end, len, seed);
        }
}

static void kinds(struct end *end)
{
    struct iovec parts[4] = { { 0 } };
    for (int part = 0; part < 4; part++) {
        parts[part].iov_base = (is_server ? in : out) + part * 1000;
        parts[part].iov_len = 1000 - 250 * (size_t)part;
    }
    struct fi_msg msg = { .msg_iov = parts, .iov_count = 1, .context = &msg };
    if (is_server) {
        MUST(fi_recvv(end->ep, parts, NULL, 4, 0, &parts));
        for (int number = 0; number < 6; number++)
            MUST(fi_recv(end->ep, in + 10000 * (number + 1), 10000, NULL, 0, NULL));
        CHECK(next_done(end->rx).len == 2500);
        for (int part = 0; part < 4; part++)
            check(parts[part].iov_base, parts[part].iov_len, part);
        uint64_t data[] = { 0, 0, 1234, 5678, 91011, 0 };
        for (int number = 0; number < 6; number++) {
            struct fi_cq_data_entry done = next_done(end->rx);
            CHECK(done.len == 1000 && !(done.flags & FI_REMOTE_CQ_DATA) == !data[number] && done.data == data[number]);
            check(in + 10000 * (number + 1), 1000, 10 + number);
        }
        return;
    }
    for (int part = 0; part < 4; part++)
        fill(parts[part].iov_base, parts[part].iov_len, part);
    MUST(fi_sendv(end->ep, parts, NULL, 4, 0, &parts));
    CHECK(next_done(end->tx).op_context == &parts);
    fill(out, 1000, 10);
    MUST(fi_inject(end->ep, out, 1000, 0));
    fill(out, 1000, 11);
    MUST(fi_sendmsg(end->ep, &msg, FI_INJECT | FI_COMPLETION));
    fill(out, 1000, 12);
    CHECK(next_done(end->tx).op_context == &msg);
    MUST(fi_senddata(end->ep, out, 1000, NULL, 1234, 0, NULL));
    next_done(end->tx);
    fill(out, 1000, 13);
    MUST(fi_injectdata(end->ep, out, 1000, 5678, 0));
    fill(out, 1000, 14);
    msg.data = 91011;
    MUST(fi_sendmsg(end->ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    next_done(end->tx);
    fill(out, 1000, 15);
    MUST(fi_send(end->ep, out, 1000, NULL, 0, NULL));
    next_done(end->tx);
    struct fi_cq_data_entry none;
    CHECK(fi_cq_read(end->tx, &none, 1) == -FI_EAGAIN);
    CHECK(fi_inject(end->ep, out, info->tx_attr->inject_size + 1, 0) == -FI_EMSGSIZE);
}

/* Messages that come before a receive is posted, by the descriptor of a queue. */
static void unexpected(struct end *end)
{
    if (!is_server) {
        for (int number = 0; number < 40; number++)
            send_one(end, 3000, number);
        return meet(end);
    }
    int fd;
    struct fid *fids[] = { &end->rx->fid };
    MUST(fi_control(&end->rx->fid, FI_GETWAIT, &fd));
    for (int number = 0; number < 40; number++) {
        struct fi_cq_data_entry done;
        MUST(fi_recv(end->ep, in, LARGEST, NULL, 0, NULL));
        while (fi_cq_read(end->rx, &done, 1) == -FI_EAGAIN) {
            struct pollfd set = { .fd = fd, .events = POLLIN };
            if (fi_trywait(fabric, fids, 1) == 0)
                CHECK(poll(&set, 1, LIMIT_MS) == 1);
        }
        check(in, 3000, number);
    }
    meet(end);
}

static void remote(struct end *end)
{
    if (is_server) {
        memset(area, 0, LARGEST);
        meet(end);
        struct fi_cq_data_entry done = next_done(end->rx);
        CHECK(done.flags & FI_REMOTE_CQ_DATA && done.flags & FI_REMOTE_WRITE && done.data == 77);
        check(area, 300000, 5);
        check(area + 400000, 100, 6);
        check(area + 500000, 1000, 7);
        return meet(end);
    }
    meet(end);
    fill(out, 300000, 5);
    MUST(fi_write(end->ep, out, 300000, NULL, 0, 0, KEY, out));
    CHECK(next_done(end->tx).flags & FI_WRITE);
    fill(out, 100, 6);
    MUST(fi_inject_write(end->ep, out, 100, 0, 400000, KEY));
    /* What was written before is read. */
    fill(out, 300000, 5);
    MUST(fi_read(end->ep, in, 300000, NULL, 0, 0, KEY, in));
    CHECK(next_done(end->tx).flags & FI_READ);
    check(in, 300000, 5);
    struct iovec parts[2] = { { in, 40 }, { in + 1000, 60 } };
    MUST(fi_readv(end->ep, parts, NULL, 2, 0, 400000, KEY, parts));
    CHECK(next_done(end->tx).op_context == parts);
    memmove(in + 40, in + 1000, 60);
    check(in, 100, 6);
    fill(out, 1000, 7);
    MUST(fi_writedata(end->ep, out, 1000, NULL, 77, 0, 500000, KEY, NULL));
    next_done(end->tx);
    meet(end);
}

static void truncated(struct end *end)
{
    if (!is_server)
        return send_one(end, 150, 3);
    MUST(fi_recv(end->ep, in, 100, NULL, 0, in));
    struct fi_cq_err_entry error = next_failed(end->rx);
    CHECK(error.err == FI_ETRUNC && error.olen == 50 && error.len == 100 && error.op_context == in);
    check(in, 100, 3);
}

/* A second connection ends by what its client does; the first is as before. */
static void wrong_key(struct end *first)
{
    struct event event;
    struct end end = connected(0);
    MUST(fi_recv(end.ep, in, 100, NULL, 0, &end));
    if (!is_server) {
        MUST(fi_read(end.ep, out, 8, NULL, 0, 0, KEY + 1, out));
        struct fi_cq_err_entry error = next_failed(end.tx);
        CHECK(error.err == FI_EACCES && error.op_context == out);
    }
    struct fi_cq_err_entry error = next_failed(end.rx);
    CHECK(error.err == FI_ECANCELED && error.op_context == &end);
    next_event(FI_SHUTDOWN, &event);
    CHECK(event.entry.fid == &end.ep->fid);
    close_end(&end);
    meet(first);
}

static void selective(void)
{
    struct event event;
    struct end end = connected(FI_SELECTIVE_COMPLETION);
    if (is_server) {
        for (int number = 0; number < 3; number++)
            receive_one(&end, 10, number);
        next_event(FI_SHUTDOWN, &event);
        return close_end(&end);
    }
    struct iovec part = { out, 10 };
    struct fi_msg msg = { .msg_iov = &part, .iov_count = 1, .context = &msg };
    fill(out, 10, 0);
    MUST(fi_send(end.ep, out, 10, NULL, 0, NULL));
    fill(out, 10, 1);
    MUST(fi_sendmsg(end.ep, &msg, 0));
    fill(out, 10, 2);
    MUST(fi_sendmsg(end.ep, &msg, FI_COMPLETION));
    struct fi_cq_data_entry none;
    CHECK(next_done(end.tx).op_context == &msg && fi_cq_read(end.tx, &none, 1) == -FI_EAGAIN);
    close_end(&end);
}

/* The client is killed: with that its endpoint here ends. */
static void killed(void)
{
    struct event event;
    struct end end = connected(0);
    meet(&end);
    printf("connected\n");
    fflush(stdout);
    MUST(fi_recv(end.ep, in, 10, NULL, 0, in));
    struct fi_cq_err_entry error = next_failed(end.rx);
    CHECK(error.err == FI_ECANCELED && error.op_context == in);
    next_event(FI_SHUTDOWN, &event);
    close_end(&end);
    printf("all as it should be\n");
}

int main(int argc, char **argv)
{
    is_server = argc > 1 && strncmp(argv[1], "serve", 5) == 0;
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->fabric_attr->prov_name = strdup("toe");
    MUST(is_server ? fi_getinfo(FI_VERSION(1, 17), NULL, PORT, FI_SOURCE, hints, &info)
                   : fi_getinfo(FI_VERSION(1, 17), argv[2], PORT, 0, hints, &info));
    out = calloc(1, LARGEST), in = calloc(1, LARGEST), area = calloc(1, LARGEST);
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
    MUST(fi_eq_open(fabric, &attr, &eq, NULL));
    MUST(fi_domain(fabric, info, &domain, NULL));
    MUST(fi_mr_reg(domain, area, LARGEST, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &region, NULL));
    CHECK(fi_mr_key(region) == KEY);
    if (is_server) {
        MUST(fi_passive_ep(fabric, info, &pep, NULL));
        MUST(fi_pep_bind(pep, &eq->fid, 0));
        MUST(fi_listen(pep));
    }
    if (strstr(argv[1], "killed"))
        return killed(), 0;
    rejected();
    struct end end = connected(0);
    pingpong(&end);
    kinds(&end);
    unexpected(&end);
    remote(&end);
    truncated(&end);
    meet(&end);
    wrong_key(&end);
    selective();
    if (is_server) {
        MUST(fi_recv(end.ep, in, 10, NULL, 0, &is_server));
        MUST(fi_cancel(&end.ep->fid, &is_server));
        CHECK(next_failed(end.rx).err == FI_ECANCELED && fi_cancel(&end.ep->fid, &is_server) == -FI_ENOENT);
    }
    meet(&end);
    if (is_server) {
        struct event event;
        next_event(FI_SHUTDOWN, &event);
        CHECK(event.entry.fid == &end.ep->fid);
    }
    close_end(&end);
    MUST(fi_close(&region->fid));
    if (pep)
        MUST(fi_close(&pep->fid));
    MUST(fi_close(&domain->fid));
    MUST(fi_close(&eq->fid));
    MUST(fi_close(&fabric->fid));
    fi_freeinfo(hints), fi_freeinfo(info);
    printf("all as it should be\n");
    return 0;
}
