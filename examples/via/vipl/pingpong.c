/* Ping-pong with VIPL, the interface below EVIL. One side: pingpong wait PORT; the other: pingpong NODE PORT [ROUNDS]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>

#define BALL_SIZE 64

/* All of it is registered: two descriptors and the balls that they describe. */
static struct {
    VIP_DESCRIPTOR send __attribute__((aligned(64)));
    VIP_DESCRIPTOR recv __attribute__((aligned(64)));
    char out[BALL_SIZE];
    char in[BALL_SIZE];
} memory __attribute__((aligned(64)));

static VIP_NIC_HANDLE nic;
static VIP_PROTECTION_HANDLE ptag;
static VIP_MEM_HANDLE handle;
static VIP_VI_HANDLE vi;

static void check(const char *what, VIP_RETURN result)
{
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "pingpong: %s: error %d\n", what, result);
        exit(1);
    }
}

/* The address of a node with the port as its discriminator. */
static VIP_NET_ADDRESS *address(char *node, unsigned char port)
{
    VIP_NET_ADDRESS *made = calloc(1, sizeof *made + 256);
    if (!made)
        exit(1);
    check("VipNSGetHostByName", VipNSGetHostByName(nic, node, made, 0));
    made->DiscriminatorLen = 1;
    made->HostAddress[made->HostAddressLen] = port;
    return made;
}

static void describe(VIP_DESCRIPTOR *descriptor, void *data, int size)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = size;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = size;
}

static void post_recv(void)
{
    describe(&memory.recv, memory.in, BALL_SIZE);
    check("VipPostRecv", VipPostRecv(vi, &memory.recv, handle));
}

static void send_ball(int size)
{
    VIP_DESCRIPTOR *done;
    describe(&memory.send, memory.out, size);
    check("VipPostSend", VipPostSend(vi, &memory.send, handle));
    check("VipSendWait", VipSendWait(vi, VIP_INFINITE, &done));
}

static void open_vi(void)
{
    VIP_MEM_ATTRIBUTES of_memory = {0};
    VIP_VI_ATTRIBUTES of_vi = {0};
    check("VipOpenNic", VipOpenNic("toe", &nic));
    check("VipNSInit", VipNSInit(nic, NULL));
    check("VipCreatePtag", VipCreatePtag(nic, &ptag));
    of_memory.Ptag = ptag;
    check("VipRegisterMem", VipRegisterMem(nic, &memory, sizeof memory, &of_memory, &handle));
    of_vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    of_vi.MaxTransferSize = BALL_SIZE;
    of_vi.Ptag = ptag;
    check("VipCreateVi", VipCreateVi(nic, &of_vi, NULL, NULL, &vi));
}

static void close_vi(void)
{
    check("VipDisconnect", VipDisconnect(vi));
    VIP_DESCRIPTOR *flushed;
    while (VipRecvDone(vi, &flushed) != VIP_NOT_DONE)
        ;
    check("VipDestroyVi", VipDestroyVi(vi));
    check("VipDeregisterMem", VipDeregisterMem(nic, &memory, handle));
    check("VipDestroyPtag", VipDestroyPtag(nic, ptag));
    check("VipNSShutdown", VipNSShutdown(nic));
    check("VipCloseNic", VipCloseNic(nic));
}

static void serve(int port)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_CONN_HANDLE connection;
    VIP_DESCRIPTOR *done;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = calloc(1, sizeof *remote + 256);
    check("VipConnectWait", VipConnectWait(nic, local, VIP_INFINITE, remote, &remote_vi, &connection));
    post_recv();
    check("VipConnectAccept", VipConnectAccept(connection, vi));
    while (VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS) {
        int size = done->CS.Length;
        memcpy(memory.out, memory.in, size);
        post_recv(); /* before the other side hears of it: else the next ball might find no receive */
        send_ball(size);
    }
    printf("served\n");
}

static void play(char *node, int port, int rounds)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_DESCRIPTOR *done;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = address(node, port);
    post_recv();
    check("VipConnectRequest", VipConnectRequest(vi, local, remote, VIP_INFINITE, &remote_vi));
    for (int round = 0; round < rounds; round++) {
        send_ball(snprintf(memory.out, BALL_SIZE, "ball %d", round));
        check("VipRecvWait", VipRecvWait(vi, VIP_INFINITE, &done));
        if (round + 1 < rounds)
            post_recv();
    }
    printf("%.*s\n", (int)memory.recv.CS.Length, memory.in);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return fprintf(stderr, "usage: pingpong wait|NODE PORT [ROUNDS]\n"), 2;
    open_vi();
    if (!strcmp(argv[1], "wait"))
        serve(atoi(argv[2]));
    else
        play(argv[1], atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 10);
    close_vi();
    return 0;
}
