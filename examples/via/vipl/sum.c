/* The sum of 1 to N over several nodes with VIPL, the interface below EVIL. The workers: sum work PORT, each at a port of its own; then:
 * sum N NODE:PORT ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>

#define NODES_MAX 64

/* What goes to a worker and what comes from it, and the descriptors of both. */
struct node {
    VIP_DESCRIPTOR send __attribute__((aligned(64)));
    VIP_DESCRIPTOR recv __attribute__((aligned(64)));
    long range[2];
    long part;
};

/* All of it is registered. */
static struct node nodes[NODES_MAX] __attribute__((aligned(64)));

static VIP_NIC_HANDLE nic;
static VIP_PROTECTION_HANDLE ptag;
static VIP_MEM_HANDLE handle;
static VIP_VI_HANDLE vis[NODES_MAX];

static void check(const char *what, VIP_RETURN result)
{
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "sum: %s: error %d\n", what, result);
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
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = size;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = size;
    return descriptor;
}

static void send_to(int node, void *data, int size)
{
    VIP_DESCRIPTOR *done;
    check("VipPostSend", VipPostSend(vis[node], describe(&nodes[node].send, data, size), handle));
    check("VipSendWait", VipSendWait(vis[node], VIP_INFINITE, &done));
}

static void open_vis(int count)
{
    VIP_MEM_ATTRIBUTES of_memory = {0};
    VIP_VI_ATTRIBUTES of_vi = {0};
    check("VipOpenNic", VipOpenNic("toe", &nic));
    check("VipNSInit", VipNSInit(nic, NULL));
    check("VipCreatePtag", VipCreatePtag(nic, &ptag));
    of_memory.Ptag = ptag;
    check("VipRegisterMem", VipRegisterMem(nic, nodes, sizeof nodes, &of_memory, &handle));
    of_vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    of_vi.MaxTransferSize = sizeof nodes[0].range;
    of_vi.Ptag = ptag;
    for (int i = 0; i < count; i++)
        check("VipCreateVi", VipCreateVi(nic, &of_vi, NULL, NULL, &vis[i]));
}

static void close_vis(int count)
{
    for (int i = 0; i < count; i++) {
        check("VipDisconnect", VipDisconnect(vis[i]));
        check("VipDestroyVi", VipDestroyVi(vis[i]));
    }
    check("VipDeregisterMem", VipDeregisterMem(nic, nodes, handle));
    check("VipDestroyPtag", VipDestroyPtag(nic, ptag));
    check("VipNSShutdown", VipNSShutdown(nic));
    check("VipCloseNic", VipCloseNic(nic));
}

static void work(int port)
{
    VIP_VI_ATTRIBUTES remote_vi;
    VIP_CONN_HANDLE connection;
    VIP_DESCRIPTOR *done;
    struct node *boss = &nodes[0];
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = calloc(1, sizeof *remote + 256);
    check("VipPostRecv", VipPostRecv(vis[0], describe(&boss->recv, boss->range, sizeof boss->range), handle));
    check("VipConnectWait", VipConnectWait(nic, local, VIP_INFINITE, remote, &remote_vi, &connection));
    check("VipConnectAccept", VipConnectAccept(connection, vis[0]));
    check("VipRecvWait", VipRecvWait(vis[0], VIP_INFINITE, &done));
    for (long n = boss->range[0]; n < boss->range[1]; n++)
        boss->part += n;
    send_to(0, &boss->part, sizeof boss->part);
}

/* What a worker is to sum up; before it can answer, there is a receive for the answer. */
static void ask(int i, int count, long last, char *place)
{
    VIP_VI_ATTRIBUTES remote_vi;
    struct node *node = &nodes[i];
    char *colon = strchr(place, ':');
    if (!colon) {
        fprintf(stderr, "sum: %s is no NODE:PORT\n", place);
        exit(2);
    }
    *colon = 0;
    int port = atoi(colon + 1);
    VIP_NET_ADDRESS *local = address("localhost", port), *remote = address(place, port);
    check("VipPostRecv", VipPostRecv(vis[i], describe(&node->recv, &node->part, sizeof node->part), handle));
    check("VipConnectRequest", VipConnectRequest(vis[i], local, remote, VIP_INFINITE, &remote_vi));
    node->range[0] = 1 + last * i / count;
    node->range[1] = 1 + last * (i + 1) / count;
    send_to(i, node->range, sizeof node->range);
}

int main(int argc, char **argv)
{
    VIP_DESCRIPTOR *done;
    if (argc < 3 || argc > 2 + NODES_MAX)
        return fprintf(stderr, "usage: sum work PORT | sum N NODE:PORT ...\n"), 2;
    if (!strcmp(argv[1], "work")) {
        open_vis(1);
        work(atoi(argv[2]));
        close_vis(1);
        return 0;
    }
    long last = atol(argv[1]), sum = 0;
    int count = argc - 2;
    open_vis(count);
    for (int i = 0; i < count; i++)
        ask(i, count, last, argv[i + 2]);
    for (int i = 0; i < count; i++) {
        check("VipRecvWait", VipRecvWait(vis[i], VIP_INFINITE, &done));
        sum += nodes[i].part;
    }
    close_vis(count);
    printf("%ld\n", sum);
    return 0;
}
