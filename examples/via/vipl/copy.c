/* A file from one program to another with VIPL, the interface below EVIL. One side: copy PORT > FILE; the other: copy NODE PORT < FILE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl.h>

/* A message for which no receive is posted ends the connection, so who receives says how many it has posted again. */
#define BUFFERS 16
#define SIZE 16384

/* All of it is registered. The descriptors are used round robin. */
static struct {
    VIP_DESCRIPTOR of_data[BUFFERS] __attribute__((aligned(64)));
    VIP_DESCRIPTOR of_credit[BUFFERS] __attribute__((aligned(64)));
    char data[BUFFERS][SIZE];
} memory __attribute__((aligned(64)));

static VIP_NIC_HANDLE nic;
static VIP_PROTECTION_HANDLE ptag;
static VIP_MEM_HANDLE handle;
static VIP_VI_HANDLE vi;

static void check(const char *what, VIP_RETURN result)
{
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "copy: %s: error %d\n", what, result);
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

static VIP_DESCRIPTOR *describe(VIP_DESCRIPTOR *descriptor, void *data, int size)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = size;
    if (size > 0) {
        descriptor->CS.SegCount = 1;
        descriptor->DS[0].Local.Data.Address = data;
        descriptor->DS[0].Local.Handle = handle;
        descriptor->DS[0].Local.Length = size;
    }
    return descriptor;
}

static void post_recv(VIP_DESCRIPTOR *descriptor, void *data, int size)
{
    check("VipPostRecv", VipPostRecv(vi, describe(descriptor, data, size), handle));
}

static void post_send(VIP_DESCRIPTOR *descriptor, void *data, int size)
{
    check("VipPostSend", VipPostSend(vi, describe(descriptor, data, size), handle));
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
    of_vi.MaxTransferSize = SIZE;
    of_vi.Ptag = ptag;
    check("VipCreateVi", VipCreateVi(nic, &of_vi, NULL, NULL, &vi));
}

static void close_vi(void)
{
    VIP_DESCRIPTOR *flushed;
    check("VipDisconnect", VipDisconnect(vi));
    while (VipRecvDone(vi, &flushed) != VIP_NOT_DONE)
        ;
    while (VipSendDone(vi, &flushed) != VIP_NOT_DONE)
        ;
    check("VipDestroyVi", VipDestroyVi(vi));
    check("VipDeregisterMem", VipDeregisterMem(nic, &memory, handle));
    check("VipDestroyPtag", VipDestroyPtag(nic, ptag));
    check("VipNSShutdown", VipNSShutdown(nic));
    check("VipCloseNic", VipCloseNic(nic));
}

static void send_file(char *node, int port)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_DESCRIPTOR *done;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = address(node, port);
    int credit = BUFFERS, size, at = 0;
    for (int i = 0; i < BUFFERS; i++)
        post_recv(&memory.of_credit[i], NULL, 0);
    check("VipConnectRequest", VipConnectRequest(vi, local, remote, VIP_INFINITE, &remote_vi));
    do {
        /* One credit has come: that buffer was received. */
        for (; credit == 0; credit++) {
            check("VipRecvWait", VipRecvWait(vi, VIP_INFINITE, &done));
            post_recv(done, NULL, 0);
            check("VipSendWait", VipSendWait(vi, VIP_INFINITE, &done));
        }
        if ((size = read(0, memory.data[at], SIZE)) < 0) {
            perror("copy");
            exit(1);
        }
        post_send(&memory.of_data[at], memory.data[at], size); /* of nothing: the end of the file */
        credit--;
        at = (at + 1) % BUFFERS;
    } while (size > 0);
    /* Until all was received. */
    for (; credit < BUFFERS; credit++)
        check("VipRecvWait", VipRecvWait(vi, VIP_INFINITE, &done));
}

static void recv_file(int port)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_CONN_HANDLE connection;
    VIP_DESCRIPTOR *done;
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = calloc(1, sizeof *remote + 256);
    int size, at = 0;
    check("VipConnectWait", VipConnectWait(nic, local, VIP_INFINITE, remote, &remote_vi, &connection));
    for (int i = 0; i < BUFFERS; i++)
        post_recv(&memory.of_data[i], memory.data[i], SIZE);
    check("VipConnectAccept", VipConnectAccept(connection, vi));
    for (int messages = 0;; messages++) {
        check("VipRecvWait", VipRecvWait(vi, VIP_INFINITE, &done));
        size = done->CS.Length;
        if (fwrite(memory.data[at], 1, size, stdout) != (size_t)size) {
            perror("copy");
            exit(1);
        }
        if (size > 0)
            post_recv(done, memory.data[at], SIZE);
        if (messages >= BUFFERS)
            check("VipSendWait", VipSendWait(vi, VIP_INFINITE, &done));
        post_send(&memory.of_credit[at], NULL, 0);
        if (size == 0)
            break;
        at = (at + 1) % BUFFERS;
    }
    /* The other side leaves when it has the last credit. */
    while (VipRecvWait(vi, VIP_INFINITE, &done) == VIP_SUCCESS)
        ;
    if (fflush(stdout)) {
        perror("copy");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return fprintf(stderr, "usage: copy [NODE] PORT\n"), 2;
    open_vi();
    if (argc > 2)
        send_file(argv[1], atoi(argv[2]));
    else
        recv_file(atoi(argv[1]));
    close_vi();
    return 0;
}
