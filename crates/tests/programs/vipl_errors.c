/* What native VIA says of what cannot be. One side: vipl_errors serve SCENE LEVEL; the other, at a node of its own: vipl_errors connect SCENE
 * LEVEL. Each checks what it sees, and ends with 0. The server's node is "server", or as VIPL_SERVER says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vipl.h>

#define PORT 5
#define SIZE 16
#define SHARED 64

#define IS(what, is, wanted)                                                                                      \
    do {                                                                                                          \
        long is_ = (is), wanted_ = (wanted);                                                                      \
        if (is_ != wanted_) {                                                                                     \
            fprintf(stderr, "%s, %s, line %d: %s is 0x%lx, not 0x%lx\n", scene, level, __LINE__, what, is_, wanted_); \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)
#define OK(call) IS(#call, call, VIP_SUCCESS)

static struct {
    VIP_DESCRIPTOR send __attribute__((aligned(64)));
    VIP_DESCRIPTOR recv __attribute__((aligned(64)));
    char out[SIZE];
    char in[SIZE];
} memory __attribute__((aligned(64)));
/* The middle part is registered for the peer. */
static char shared[3][SHARED];
static char of_other_tag[SIZE];

static const char *scene, *level;
static int reliable, reception;
static VIP_NIC_HANDLE nic;
static VIP_MEM_HANDLE handle, shared_handle, other_handle;
static VIP_VI_HANDLE vi;
static int told = -1;

static int is(const char *name)
{
    return !strcmp(scene, name);
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    IS("context", context == &told, 1);
    told = error->ErrorCode;
}

static VIP_NET_ADDRESS *address(char *node)
{
    VIP_NET_ADDRESS *made = calloc(1, sizeof *made + 64);
    OK(VipNSGetHostByName(nic, node, made, 0));
    made->DiscriminatorLen = 1;
    made->HostAddress[made->HostAddressLen] = PORT;
    return made;
}

static void prepare(void)
{
    VIP_PROTECTION_HANDLE tag, other;
    VIP_MEM_ATTRIBUTES own = {0}, of_shared = {0}, of_other = {0};
    VIP_VI_ATTRIBUTES wanted = {0};
    reliable = strcmp(level, "unreliable") != 0;
    reception = !strcmp(level, "reception");
    OK(VipOpenNic("toe", &nic));
    OK(VipNSInit(nic, NULL));
    OK(VipErrorCallback(nic, &told, on_error));
    OK(VipCreatePtag(nic, &tag));
    OK(VipCreatePtag(nic, &other));
    own.Ptag = of_shared.Ptag = wanted.Ptag = tag;
    of_other.Ptag = other;
    of_shared.EnableRdmaWrite = wanted.EnableRdmaWrite = 1;
    of_shared.EnableRdmaRead = wanted.EnableRdmaRead = reliable;
    OK(VipRegisterMem(nic, &memory, sizeof memory, &own, &handle));
    OK(VipRegisterMem(nic, shared[1], SHARED, &of_shared, &shared_handle));
    OK(VipRegisterMem(nic, of_other_tag, SIZE, &of_other, &other_handle));
    wanted.ReliabilityLevel = reception  ? VIP_SERVICE_RELIABLE_RECEPTION
                              : reliable ? VIP_SERVICE_RELIABLE_DELIVERY
                                         : VIP_SERVICE_UNRELIABLE;
    OK(VipCreateVi(nic, &wanted, NULL, NULL, &vi));
}

static VIP_DESCRIPTOR *describe(VIP_DESCRIPTOR *descriptor, void *data, int size, VIP_MEM_HANDLE of)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Length = size;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = of;
    descriptor->DS[0].Local.Length = size;
    return descriptor;
}

static void post_recv(int size)
{
    OK(VipPostRecv(vi, describe(&memory.recv, memory.in, size, handle), handle));
}

static void recv_is(VIP_RETURN wanted, VIP_UINT32 status, VIP_UINT32 length)
{
    VIP_DESCRIPTOR *done;
    IS("VipRecvWait", VipRecvWait(vi, VIP_INFINITE, &done), wanted);
    IS("the descriptor", done == &memory.recv, 1);
    IS("the receive's status", done->CS.Status, status | VIP_STATUS_DONE);
    IS("the receive's length", done->CS.Length, length);
}

static void send_is(VIP_DESCRIPTOR *posted, VIP_RETURN wanted, VIP_UINT32 status)
{
    VIP_DESCRIPTOR *done;
    OK(VipPostSend(vi, posted, handle));
    IS("VipSendWait", VipSendWait(vi, VIP_INFINITE, &done), wanted);
    IS("the send's status", done->CS.Status, status | VIP_STATUS_DONE);
}

static void send_good(void)
{
    send_is(describe(&memory.send, memory.out, SIZE, handle), VIP_SUCCESS, VIP_STATUS_OP_SEND);
}

static void state_is(VIP_VI_STATE wanted)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN of_sends, of_receives;
    OK(VipQueryVi(vi, &state, &attributes, &of_sends, &of_receives));
    IS("the state", state, wanted);
}

/* Until the connection has ended. Of receives there are none. */
static void wait_for_end(void)
{
    VIP_DESCRIPTOR *done;
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN of_sends, of_receives;
    do {
        IS("VipRecvDone", VipRecvDone(vi, &done), VIP_NOT_DONE);
        OK(VipQueryVi(vi, &state, &attributes, &of_sends, &of_receives));
    } while (state == VIP_STATE_CONNECTED);
    IS("the state", state, VIP_STATE_ERROR);
}

/* The receive that is posted is flushed when the connection ends. */
static void is_flushed(void)
{
    recv_is(VIP_DESCRIPTOR_ERROR, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR, 0);
    state_is(VIP_STATE_ERROR);
}

static int is_remote(void)
{
    return is("write") || (is("read") && reliable);
}

static void serve(void)
{
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE connection;
    VIP_NET_ADDRESS *from = calloc(1, sizeof *from + 64);
    memset(shared, 0xee, sizeof shared);
    OK(VipConnectWait(nic, address("localhost"), VIP_INFINITE, from, &theirs, &connection));
    if (!is("no-receive"))
        post_recv(is("short") ? SIZE - 1 : SIZE);
    OK(VipConnectAccept(connection, vi));
    if (is_remote()) {
        void *place = shared[1];
        memcpy(memory.out, &place, 8);
        memcpy(memory.out + 8, &shared_handle, 4);
        send_good();
    }
    if (is("no-receive")) {
        wait_for_end();
        IS("the error", told, reliable ? VIP_ERROR_RECVQ_EMPTY : VIP_ERROR_CONN_LOST);
    } else if (is("short")) {
        recv_is(VIP_DESCRIPTOR_ERROR, VIP_STATUS_OP_RECEIVE | VIP_STATUS_LENGTH_ERROR, 0);
        wait_for_end();
    } else if (is("good") || is("death")) {
        recv_is(VIP_SUCCESS, VIP_STATUS_OP_RECEIVE, SIZE);
        IS("the data", memcmp(memory.in, "0123456789abcdef", SIZE), 0);
        post_recv(SIZE);
        if (is("good"))
            send_good();
        is_flushed();
        IS("the error", told, VIP_ERROR_CONN_LOST);
    } else if (is("write")) {
        recv_is(VIP_SUCCESS, VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE, 0);
        IS("the immediate data", memory.recv.CS.ImmediateData, 77);
        IS("what was written", memcmp(shared[1], "0123456789abcdef", SIZE), 0);
        post_recv(SIZE);
        is_flushed();
        IS("the error", told, reliable ? VIP_ERROR_RDMAW_PROT : VIP_ERROR_CONN_LOST);
    } else {
        is_flushed();
        IS("the error", told, is_remote() ? VIP_ERROR_RDMAR_PROT : VIP_ERROR_CONN_LOST);
    }
    /* Nothing before, and nothing behind what was written. */
    for (int i = 0; i < SHARED; i++) {
        IS("what lies before", shared[0][i] & 0xff, 0xee);
        IS("what lies behind", shared[2][i] & 0xff, 0xee);
        IS("the rest", shared[1][i] & 0xff, is("write") && i < SIZE ? "0123456789abcdef"[i] : 0xee);
    }
}

static VIP_DESCRIPTOR *remote(int operation, VIP_UINT64 place, VIP_MEM_HANDLE of)
{
    describe(&memory.send, NULL, 0, 0);
    memory.send.CS.SegCount = 2;
    memory.send.CS.Control = operation;
    memory.send.CS.Length = SIZE;
    memory.send.DS[0].Remote.Data.AddressBits = place;
    memory.send.DS[0].Remote.Handle = of;
    memory.send.DS[1].Local.Data.Address = memory.out;
    memory.send.DS[1].Local.Handle = handle;
    memory.send.DS[1].Local.Length = SIZE;
    return &memory.send;
}

static void touch_remotely(void)
{
    VIP_UINT64 place;
    VIP_MEM_HANDLE of;
    int writes = is("write");
    int operation = writes ? VIP_CONTROL_OP_RDMAWRITE : VIP_CONTROL_OP_RDMAREAD;
    VIP_UINT32 status = writes ? VIP_STATUS_OP_RDMA_WRITE : VIP_STATUS_OP_RDMA_READ;
    recv_is(VIP_SUCCESS, VIP_STATUS_OP_RECEIVE, SIZE);
    memcpy(&place, memory.in, 8);
    memcpy(&of, memory.in + 8, 4);
    post_recv(SIZE);
    VIP_DESCRIPTOR *good = remote(operation, place, of);
    good->CS.Control |= writes ? VIP_CONTROL_IMMEDIATE : 0;
    good->CS.ImmediateData = 77;
    send_is(good, VIP_SUCCESS, status);
    for (int i = 0; !writes && i < SIZE; i++)
        IS("what was read", memory.out[i] & 0xff, 0xee);
    /* One byte beyond the region. */
    VIP_DESCRIPTOR *beyond = remote(operation, place + SHARED - SIZE + 1, of);
    if (writes && !reception)
        send_is(beyond, VIP_SUCCESS, status);
    else
        send_is(beyond, VIP_DESCRIPTOR_ERROR, status | VIP_STATUS_RDMA_PROT_ERROR);
}

static void connect_to(void)
{
    VIP_VI_ATTRIBUTES theirs;
    VIP_DESCRIPTOR *descriptor = &memory.send;
    post_recv(SIZE);
    char *server = getenv("VIPL_SERVER");
    OK(VipConnectRequest(vi, address("localhost"), address(server ? server : "server"), VIP_INFINITE, &theirs));
    memcpy(memory.out, "0123456789abcdef", SIZE);
    describe(descriptor, memory.out, SIZE, handle);
    if (is("good")) {
        send_good();
        recv_is(VIP_SUCCESS, VIP_STATUS_OP_RECEIVE, SIZE);
        return;
    } else if (is("death")) {
        OK(VipPostSend(vi, descriptor, handle));
        _exit(0);
    } else if (is("no-receive") || is("short")) {
        if (reception)
            send_is(descriptor, VIP_DESCRIPTOR_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
        else
            send_good();
    } else if (is_remote()) {
        touch_remotely();
    } else if (is("read")) {
        VIP_DESCRIPTOR *read = remote(VIP_CONTROL_OP_RDMAREAD, (VIP_UINT64)shared[1], shared_handle);
        send_is(read, VIP_DESCRIPTOR_ERROR, VIP_STATUS_OP_RDMA_READ | VIP_STATUS_FORMAT_ERROR);
    } else {
        if (is("tag"))
            describe(descriptor, of_other_tag, SIZE, other_handle);
        if (is("unregistered"))
            descriptor->DS[0].Local.Data.Address = shared[0];
        if (is("beyond"))
            descriptor->DS[0].Local.Data.Address = (char *)&memory + sizeof memory - SIZE + 1;
        send_is(descriptor, VIP_DESCRIPTOR_ERROR, VIP_STATUS_PROTECTION_ERROR);
    }
    if (reliable)
        is_flushed();
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: vipl_errors serve|connect SCENE LEVEL\n"), 2;
    scene = argv[2];
    level = argv[3];
    prepare();
    if (!strcmp(argv[1], "serve"))
        serve();
    else
        connect_to();
    OK(VipDisconnect(vi));
    VIP_DESCRIPTOR *done;
    while (VipRecvDone(vi, &done) != VIP_NOT_DONE)
        ;
    OK(VipDestroyVi(vi));
    IS("VipDestroyVi again", VipDestroyVi(vi), VIP_INVALID_PARAMETER);
    return 0;
}
