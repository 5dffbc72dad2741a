/* Native VIA: the core of the Virtual Interface Provider Library, with the names, layouts and numbers of the VI Architecture specification
 * 1.0 (1997) and its developer's guide. Link with -ltoe_via. <evil.h> is the easier way to the same messages.
 *
 * Both programs are at one OpenTOE engine, in namespaces of their own or not. A host's address is its node's name (1 to 32 bytes:
 * the host's name, or TOE_VIA_NODE), a discriminator is up to 8 bytes; zeros at its end do not count.
 *
 * What differs from a card:
 *  - Nobody works in the background. What has come is taken, and what there was no credit for is sent, within calls on the virtual interface
 *    or its completion queue. So remote writes and reads of a process's memory happen while it is in a call, or at its next one.
 *  - A receive has to be posted when the message is taken, not when it is sent. One that finds none is lost (unreliable) or ends the
 *    connection (the other two levels).
 *  - Sends of a virtual interface are done in their order, a read before what is posted behind it: each has a fence.
 *  - A child of fork has none of what its parent made.
 *
 * Any thread may call any function. A descriptor and what it names belong to the library from its post until it is done; registered memory
 * stays mapped until it is deregistered. */

#ifndef OPENTOE_VIPL_H
#define OPENTOE_VIPL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned char VIP_UCHAR;
typedef unsigned short VIP_USHORT;
typedef unsigned long VIP_ULONG;
typedef uint64_t VIP_UINT64;
typedef uint32_t VIP_UINT32;
typedef uint16_t VIP_UINT16;
typedef uint8_t VIP_UINT8;

#define VIP_TRUE 1
#define VIP_FALSE 0
/* As a timeout, which is in milliseconds: as long as it takes. */
#define VIP_INFINITE (~(VIP_ULONG)0)

typedef VIP_PVOID VIP_QOS; /* NULL */
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;
typedef VIP_UINT32 VIP_MEM_HANDLE;

typedef enum {
    VIP_SUCCESS,
    VIP_NOT_DONE,
    VIP_INVALID_PARAMETER,
    VIP_ERROR_RESOURCE,
    VIP_TIMEOUT,
    VIP_REJECT,
    VIP_INVALID_RELIABILITY_LEVEL,
    VIP_INVALID_MTU,
    VIP_INVALID_QOS,
    VIP_INVALID_PTAG,
    VIP_INVALID_RDMAREAD,
    VIP_DESCRIPTOR_ERROR,
    VIP_INVALID_STATE,
    VIP_ERROR_NAMESERVICE,
    VIP_NO_MATCH,
    VIP_NOT_REACHABLE,
    VIP_ERROR_NOT_SUPPORTED
} VIP_RETURN;

/* The host's bytes and then the discriminator's: allocate so many more. */
typedef struct {
    VIP_UINT16 HostAddressLen;
    VIP_UINT16 DiscriminatorLen;
    VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

typedef VIP_USHORT VIP_RELIABILITY_LEVEL;
/* A send is done when it lies where the peer's library finds it, and may still be lost for want of a receive; that ends nothing. */
#define VIP_SERVICE_UNRELIABLE 0x01
/* The same, and what goes wrong ends the connection. */
#define VIP_SERVICE_RELIABLE_DELIVERY 0x02
/* A send is done when its data are in the peer's memory. */
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04

typedef struct {
    VIP_CHAR Name[64];
    VIP_ULONG HardwareVersion;
    VIP_ULONG ProviderVersion;
    VIP_UINT16 NicAddressLen;
    const VIP_UINT8 *LocalNicAddress;
    VIP_BOOLEAN ThreadSafe;
    VIP_UINT16 MaxDiscriminatorLen;
    VIP_ULONG MaxRegisterBytes;
    VIP_ULONG MaxRegisterRegions;
    VIP_ULONG MaxRegisterBlockBytes;
    VIP_ULONG MaxVI;
    VIP_ULONG MaxDescriptorsPerQueue;
    VIP_ULONG MaxSegmentsPerDesc;
    VIP_ULONG MaxCQ;
    VIP_ULONG MaxCQEntries;
    VIP_ULONG MaxTransferSize;
    VIP_ULONG NativeMTU;
    VIP_ULONG MaxPtags;
    VIP_RELIABILITY_LEVEL ReliabilityLevelSupport;
    VIP_RELIABILITY_LEVEL RDMAReadSupport;
} VIP_NIC_ATTRIBUTES;

/* Descriptors begin at multiples of this. */
#define VIP_DESCRIPTOR_ALIGNMENT 64

typedef union {
    VIP_UINT64 AddressBits;
    VIP_PVOID Address;
} VIP_PVOID64;

typedef struct {
    VIP_PVOID64 Next;          /* the library's */
    VIP_MEM_HANDLE NextHandle; /* the library's */
    VIP_UINT16 SegCount;       /* segments that follow, an address segment counted */
    VIP_UINT16 Control;
    VIP_UINT32 Reserved;
    VIP_UINT32 ImmediateData;
    VIP_UINT32 Length; /* of a send: bytes of its data segments; when it is done: bytes that were sent or received */
    VIP_UINT32 Status;
} VIP_CONTROL_SEGMENT;

/* Of a remote write or read, first: the peer's memory. */
typedef struct {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Reserved;
} VIP_ADDRESS_SEGMENT;

typedef struct {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Length;
} VIP_DATA_SEGMENT;

typedef union {
    VIP_ADDRESS_SEGMENT Remote;
    VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/* Of segments there may be up to MaxSegmentsPerDesc, behind each other. */
typedef struct _VIP_DESCRIPTOR {
    VIP_CONTROL_SEGMENT CS;
    VIP_DESCRIPTOR_SEGMENT DS[2];
} VIP_DESCRIPTOR;

#define VIP_CONTROL_OP_SENDRECV 0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD 0x0002
#define VIP_CONTROL_OP_RESERVED 0x0003
#define VIP_CONTROL_OP_MASK 0x0003
#define VIP_CONTROL_IMMEDIATE 0x0004
#define VIP_CONTROL_QFENCE 0x0008
#define VIP_CONTROL_RESERVED 0xFFF0

#define VIP_STATUS_DONE 0x00000001
#define VIP_STATUS_FORMAT_ERROR 0x00000002      /* the descriptor is malformed */
#define VIP_STATUS_PROTECTION_ERROR 0x00000004  /* a data segment is not memory registered with the virtual interface's tag */
#define VIP_STATUS_LENGTH_ERROR 0x00000008      /* the message is longer than the receive, or than MaxTransferSize */
#define VIP_STATUS_PARTIAL_ERROR 0x00000010     /* not used */
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x00000020 /* the connection ended before it began */
#define VIP_STATUS_TRANSPORT_ERROR 0x00000040   /* the connection ended while it was on its way */
#define VIP_STATUS_RDMA_PROT_ERROR 0x00000080   /* the peer's memory may not be touched so */
#define VIP_STATUS_REMOTE_DESC_ERROR 0x00000100 /* the peer had no receive for it, or one that was wrong */
#define VIP_STATUS_ERROR_MASK 0x000001FE
#define VIP_STATUS_OP_SEND 0x00000000
#define VIP_STATUS_OP_RECEIVE 0x00010000
#define VIP_STATUS_OP_RDMA_WRITE 0x00020000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x00030000
#define VIP_STATUS_OP_RDMA_READ 0x00040000
#define VIP_STATUS_OP_MASK 0x00070000
#define VIP_STATUS_IMMEDIATE 0x00080000
#define VIP_STATUS_RESERVED 0xFFF0FE00

typedef enum { VIP_STATE_IDLE, VIP_STATE_CONNECTED, VIP_STATE_CONNECT_PENDING, VIP_STATE_ERROR } VIP_VI_STATE;

/* MaxTransferSize 0: the interface's. The Enable fields say what the peer may do to memory that is registered with the tag. */
typedef struct {
    VIP_RELIABILITY_LEVEL ReliabilityLevel;
    VIP_ULONG MaxTransferSize;
    VIP_QOS QoS;
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_VI_ATTRIBUTES;

typedef struct _VIP_MEM_ATTRIBUTES {
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

typedef enum _VIP_ERROR_CODE {
    VIP_ERROR_POST_DESC,
    VIP_ERROR_CONN_LOST,
    VIP_ERROR_RECVQ_EMPTY,
    VIP_ERROR_VI_OVERRUN,
    VIP_ERROR_RDMAW_PROT,
    VIP_ERROR_RDMAW_DATA,
    VIP_ERROR_RDMAW_ABORT,
    VIP_ERROR_RDMAR_PROT,
    VIP_ERROR_COMP_PROT,
    VIP_ERROR_RDMA_TRANSPORT,
    VIP_ERROR_CATASTROPHIC
} VIP_ERROR_CODE;

typedef enum _VIP_RESOURCE_CODE { VIP_RESOURCE_NIC, VIP_RESOURCE_VI, VIP_RESOURCE_CQ, VIP_RESOURCE_DESCRIPTOR } VIP_RESOURCE_CODE;

typedef struct _VIP_ERROR_DESCRIPTOR {
    VIP_NIC_HANDLE NicHandle;
    VIP_VI_HANDLE ViHandle;
    VIP_CQ_HANDLE CQHandle;
    VIP_DESCRIPTOR *DescriptorPtr;
    VIP_ULONG OpCode;
    VIP_RESOURCE_CODE ResourceCode;
    VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

/* The process's engine: that of TOE_ENGINE, else the user's engine named "default", else root's. DeviceName: "toe", "" or NULL.
 * VIP_ERROR_RESOURCE: no engine answers. */
VIP_RETURN VipOpenNic(const VIP_CHAR *DeviceName, VIP_NIC_HANDLE *NicHandle);
/* VIP_ERROR_RESOURCE: it has virtual interfaces. */
VIP_RETURN VipCloseNic(VIP_NIC_HANDLE NicHandle);
VIP_RETURN VipQueryNic(VIP_NIC_HANDLE NicHandle, VIP_NIC_ATTRIBUTES *NicAttribs);
/* Who is told of what no descriptor tells; Handler NULL: nobody. It is called by the thread that finds out, within its call. */
VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE NicHandle, VIP_PVOID Context,
                            void (*Handler)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc));

/* Only a virtual interface with the same tag uses memory. VIP_ERROR_RESOURCE: all tags are in use; the tag is. */
VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE NicHandle, VIP_PROTECTION_HANDLE *Ptag);
VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE NicHandle, VIP_PROTECTION_HANDLE Ptag);

/* VIP_INVALID_PTAG; VIP_INVALID_PARAMETER: there is no memory everywhere in the range. */
VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID VirtualAddress, VIP_ULONG Length, VIP_MEM_ATTRIBUTES *MemAttribs,
                          VIP_MEM_HANDLE *MemoryHandle);
VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID VirtualAddress, VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipQueryMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemHandle, VIP_MEM_ATTRIBUTES *MemAttribs);

/* Queues that are NULL are the virtual interface's own. */
VIP_RETURN VipCreateVi(VIP_NIC_HANDLE NicHandle, VIP_VI_ATTRIBUTES *ViAttribs, VIP_CQ_HANDLE SendCQHandle, VIP_CQ_HANDLE RecvCQHandle,
                       VIP_VI_HANDLE *ViHandle);
/* VIP_INVALID_STATE: it is connected. */
VIP_RETURN VipDestroyVi(VIP_VI_HANDLE ViHandle);
VIP_RETURN VipQueryVi(VIP_VI_HANDLE ViHandle, VIP_VI_STATE *State, VIP_VI_ATTRIBUTES *ViAttribs, VIP_BOOLEAN *ViSendQEmpty,
                      VIP_BOOLEAN *ViRecvQEmpty);

/* Waits until somebody asks for a connection to this node at LocalAddr's discriminator. RemoteAddr has room for NicAddressLen (at most 32)
 * and MaxDiscriminatorLen bytes. */
VIP_RETURN VipConnectWait(VIP_NIC_HANDLE NicHandle, VIP_NET_ADDRESS *LocalAddr, VIP_ULONG Timeout, VIP_NET_ADDRESS *RemoteAddr,
                          VIP_VI_ATTRIBUTES *RemoteViAttribs, VIP_CONN_HANDLE *ConnHandle);
/* VIP_INVALID_RELIABILITY_LEVEL: it is not that of the other side; the connection still waits. VIP_TIMEOUT: the other side has gone. */
VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE ConnHandle, VIP_VI_HANDLE ViHandle);
VIP_RETURN VipConnectReject(VIP_CONN_HANDLE ConnHandle);
/* The other side may come to wait later. VIP_REJECT; VIP_TIMEOUT. LocalAddr is this node's, whatever it says. */
VIP_RETURN VipConnectRequest(VIP_VI_HANDLE ViHandle, VIP_NET_ADDRESS *LocalAddr, VIP_NET_ADDRESS *RemoteAddr, VIP_ULONG Timeout,
                             VIP_VI_ATTRIBUTES *RemoteViAttribs);
/* The peer takes what was sent, and then hears of the end. What is posted here is flushed. */
VIP_RETURN VipDisconnect(VIP_VI_HANDLE ViHandle);

/* MemoryHandle: the memory that the descriptor itself lies in. VIP_INVALID_PARAMETER: it does not, or is not aligned. VIP_ERROR_RESOURCE: the
 * queue is full. VIP_INVALID_STATE: a send on a virtual interface that is not connected. None of them blocks. */
VIP_RETURN VipPostSend(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *DescriptorPtr, VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipPostRecv(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *DescriptorPtr, VIP_MEM_HANDLE MemoryHandle);
/* The descriptor that is done longest. VIP_NOT_DONE; VIP_DESCRIPTOR_ERROR: it is done, and its Status says what went wrong. */
VIP_RETURN VipSendDone(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvDone(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipSendWait(VIP_VI_HANDLE ViHandle, VIP_ULONG Timeout, VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvWait(VIP_VI_HANDLE ViHandle, VIP_ULONG Timeout, VIP_DESCRIPTOR **DescriptorPtr);

/* Whose queue has a descriptor that is done: fetch it with VipSendDone or VipRecvDone. More than EntryCount at a time are lost
 * (VIP_ERROR_VI_OVERRUN). */
VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE NicHandle, VIP_ULONG EntryCount, VIP_CQ_HANDLE *CQHandle);
/* VIP_ERROR_RESOURCE: a virtual interface has it. */
VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE CQHandle);
VIP_RETURN VipCQDone(VIP_CQ_HANDLE CQHandle, VIP_VI_HANDLE *ViHandle, VIP_BOOLEAN *RecvQueue);
VIP_RETURN VipCQWait(VIP_CQ_HANDLE CQHandle, VIP_ULONG Timeout, VIP_VI_HANDLE *ViHandle, VIP_BOOLEAN *RecvQueue);

/* Names are addresses: nothing is asked of anybody. NSInitInfo: NULL. NameLen: bytes of Name, then those of the name and its zero. */
VIP_RETURN VipNSInit(VIP_NIC_HANDLE NicHandle, VIP_PVOID NSInitInfo);
VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE NicHandle, VIP_CHAR *Name, VIP_NET_ADDRESS *Address, VIP_ULONG NameIndex);
VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE NicHandle, VIP_NET_ADDRESS *Address, VIP_CHAR *Name, VIP_ULONG *NameLen);
VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE NicHandle);

#ifdef __cplusplus
}
#endif

#endif /* OPENTOE_VIPL_H */
