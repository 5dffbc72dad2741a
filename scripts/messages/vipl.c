/* The load of toe-message by native VIA: vipl serve NODE PORT, vipl rr|flood NODE PORT SIZE TOTAL SECONDS. One line of JSON, in toe-load's words.
 *
 * VIA refuses a message that finds no receive, so a flood counts: the receiver has WINDOW receives posted and says so for each quarter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vipl.h>

#define WINDOW 128
#define QUARTER (WINDOW / 4)
#define LARGEST (1 << 20)
#define MANY 10000000

struct order {
    unsigned mode, size;
    unsigned long total;
};

static struct {
    VIP_DESCRIPTOR out[WINDOW] __attribute__((aligned(64)));
    VIP_DESCRIPTOR in[WINDOW] __attribute__((aligned(64)));
} *descriptors;
static char *data_out, *data_in;
static VIP_NIC_HANDLE nic;
static VIP_PROTECTION_HANDLE ptag;
static VIP_MEM_HANDLE of_descriptors, of_out, of_in;
static VIP_VI_HANDLE vi;
static unsigned long sent, posted;

static void check(const char *what, VIP_RETURN result)
{
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "vipl: %s: error %d\n", what, result);
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static VIP_NET_ADDRESS *address(char *node, int port)
{
    VIP_NET_ADDRESS *made = calloc(1, sizeof *made + 256);
    check("VipNSGetHostByName", VipNSGetHostByName(nic, node, made, 0));
    made->DiscriminatorLen = 1;
    made->HostAddress[made->HostAddressLen] = (unsigned char)port;
    return made;
}

static void describe(VIP_DESCRIPTOR *descriptor, void *data, VIP_MEM_HANDLE handle, unsigned size)
{
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = size;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = size;
}

/* All receives go to the same memory: what came is not kept. */
static void post_receive(unsigned size)
{
    VIP_DESCRIPTOR *descriptor = &descriptors->in[posted++ % WINDOW];
    describe(descriptor, data_in, of_in, size);
    check("VipPostRecv", VipPostRecv(vi, descriptor, of_descriptors));
}

static int receive(void)
{
    VIP_DESCRIPTOR *done;
    return VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS;
}

static void send_one(unsigned size)
{
    VIP_DESCRIPTOR *done, *descriptor = &descriptors->out[sent++ % WINDOW];
    describe(descriptor, data_out, of_out, size);
    check("VipPostSend", VipPostSend(vi, descriptor, of_descriptors));
    if (VipSendDone(vi, &done) == VIP_NOT_DONE)
        check("VipSendWait", VipSendWait(vi, VIP_INFINITE, &done));
}

static void open_vi(void)
{
    VIP_MEM_ATTRIBUTES of_memory = { 0 };
    VIP_VI_ATTRIBUTES of_vi = { 0 };
    descriptors = aligned_alloc(4096, sizeof *descriptors);
    memset(descriptors, 0, sizeof *descriptors);
    data_out = aligned_alloc(4096, LARGEST), data_in = aligned_alloc(4096, LARGEST);
    memset(data_out, 7, LARGEST), memset(data_in, 7, LARGEST);
    check("VipOpenNic", VipOpenNic("toe", &nic));
    check("VipNSInit", VipNSInit(nic, NULL));
    check("VipCreatePtag", VipCreatePtag(nic, &ptag));
    of_memory.Ptag = ptag;
    check("VipRegisterMem", VipRegisterMem(nic, descriptors, sizeof *descriptors, &of_memory, &of_descriptors));
    check("VipRegisterMem", VipRegisterMem(nic, data_out, LARGEST, &of_memory, &of_out));
    check("VipRegisterMem", VipRegisterMem(nic, data_in, LARGEST, &of_memory, &of_in));
    of_vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    of_vi.MaxTransferSize = LARGEST;
    of_vi.Ptag = ptag;
    check("VipCreateVi", VipCreateVi(nic, &of_vi, NULL, NULL, &vi));
}

static void serve_one(int port)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_CONN_HANDLE connection;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = calloc(1, sizeof *remote + 256);
    check("VipConnectWait", VipConnectWait(nic, local, VIP_INFINITE, remote, &remote_vi, &connection));
    sent = posted = 0;
    for (int number = 0; number < WINDOW; number++)
        post_receive(LARGEST);
    check("VipConnectAccept", VipConnectAccept(connection, vi));
    struct order order;
    if (receive()) {
        memcpy(&order, data_in, sizeof order);
        post_receive(LARGEST);
        for (unsigned long came = 0, number = 1; receive(); number++) {
            post_receive(LARGEST);
            came += order.size;
            if (order.mode == 0)
                send_one(order.size);
            else if (number % QUARTER == 0 || came >= order.total)
                send_one(8);
            if (came >= order.total)
                came = 0, number = 0;
        }
    }
    VIP_DESCRIPTOR *flushed;
    check("VipDisconnect", VipDisconnect(vi));
    while (VipRecvDone(vi, &flushed) != VIP_NOT_DONE)
        ;
    while (VipSendDone(vi, &flushed) != VIP_NOT_DONE)
        ;
}

static void start(char *node, int port, struct order *order)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = address(node, port);
    for (int number = 0; number < WINDOW; number++)
        post_receive(order->mode == 0 ? order->size : 8);
    check("VipConnectRequest", VipConnectRequest(vi, local, remote, VIP_INFINITE, &remote_vi));
    memcpy(data_out, order, sizeof *order);
    send_one(sizeof *order);
}

static int by_size(const void *one, const void *other)
{
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static void rr(unsigned size, double seconds)
{
    float *took_us = malloc(sizeof(float) * MANY);
    long count = 0, turns = 0;
    double began = now(), warm = began + 0.2, last = began;
    for (; count < MANY; turns++) {
        send_one(size);
        if (!receive())
            exit(1);
        post_receive(size);
        double at = now();
        if (at >= warm)
            took_us[count++] = (float)((at - last) * 1e6);
        last = at;
        if (at >= warm + seconds)
            break;
    }
    qsort(took_us, (size_t)count, sizeof(float), by_size);
    printf("{\"mode\":\"rr\",\"requests\":%ld,\"rate\":%.3f,\"latency_us\":{\"p50\":%.3f,\"p99\":%.3f}}\n", count,
           (double)count / seconds, took_us[count / 2], took_us[count * 99 / 100]);
}

static void flood(unsigned size, unsigned long total, double seconds)
{
    long messages = (long)((total + size - 1) / size), transfers = 0;
    double warm = now() + 0.2, began = 0;
    for (;;) {
        for (long number = 1, free = WINDOW - 1; number <= messages; number++) {
            send_one(size);
            if (--free == 0) {
                if (!receive())
                    exit(1);
                post_receive(8);
                free = QUARTER;
            }
        }
        /* What was said of quarters and not waited for, and that all have come. */
        long said = messages / QUARTER + (messages % QUARTER != 0), heard = messages < WINDOW - 1 ? 0 : (messages - (WINDOW - 1)) / QUARTER + 1;
        for (; heard < said; heard++) {
            if (!receive())
                exit(1);
            post_receive(8);
        }
        double at = now();
        if (began == 0 && at >= warm) {
            began = at;
        } else if (began != 0) {
            transfers++;
            if (at - began >= seconds) {
                double rate = (double)(transfers * messages) / (at - began);
                printf("{\"mode\":\"flood\",\"rate\":%.3f,\"bytes_per_second\":%.0f}\n", rate, rate * size);
                return;
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "usage: vipl serve|rr|flood NODE PORT [SIZE TOTAL SECONDS]\n"), 2;
    open_vi();
    if (!strcmp(argv[1], "serve"))
        for (;;)
            serve_one(atoi(argv[3]));
    struct order order = { !strcmp(argv[1], "flood"), (unsigned)atoi(argv[4]), strtoul(argv[5], NULL, 10) };
    double seconds = atof(argv[6]);
    start(argv[2], atoi(argv[3]), &order);
    if (order.mode == 0)
        rr(order.size, seconds);
    else
        flood(order.size, order.total, seconds);
    check("VipDisconnect", VipDisconnect(vi));
    return 0;
}
