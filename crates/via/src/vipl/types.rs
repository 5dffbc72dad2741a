//! The types of `include/vipl.h`, with the specification's names and layouts, and its numbers.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[expect(dead_code, reason = "the numbers of those that follow depend on all of them")]
pub enum VipReturn {
    Success,
    NotDone,
    InvalidParameter,
    ErrorResource,
    Timeout,
    Reject,
    InvalidReliabilityLevel,
    InvalidMtu,
    InvalidQos,
    InvalidPtag,
    InvalidRdmaread,
    DescriptorError,
    InvalidState,
    ErrorNameservice,
    NoMatch,
    NotReachable,
    ErrorNotSupported,
}

/// What an error callback is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[expect(dead_code, reason = "the numbers of those that follow depend on all of them")]
pub enum VipErrorCode {
    PostDesc,
    ConnLost,
    RecvqEmpty,
    ViOverrun,
    RdmawProt,
    RdmawData,
    RdmawAbort,
    RdmarProt,
    CompProt,
    RdmaTransport,
    Catastrophic,
}

pub const CONTROL_OP_MASK: u16 = 3;
pub const CONTROL_OP_SENDRECV: u16 = 0;
pub const CONTROL_OP_RDMAWRITE: u16 = 1;
pub const CONTROL_OP_RDMAREAD: u16 = 2;
pub const CONTROL_IMMEDIATE: u16 = 4;
pub const CONTROL_RESERVED: u16 = 0xfff0;

pub const STATUS_DONE: u32 = 1;
pub const STATUS_FORMAT_ERROR: u32 = 2;
pub const STATUS_PROTECTION_ERROR: u32 = 4;
pub const STATUS_LENGTH_ERROR: u32 = 8;
pub const STATUS_FLUSHED_ERROR: u32 = 0x20;
pub const STATUS_TRANSPORT_ERROR: u32 = 0x40;
pub const STATUS_RDMA_PROT_ERROR: u32 = 0x80;
pub const STATUS_REMOTE_DESC_ERROR: u32 = 0x100;
pub const STATUS_ERROR_MASK: u32 = 0x1fe;
pub const STATUS_OP_RECEIVE: u32 = 0x10000;
pub const STATUS_OP_RDMA_WRITE: u32 = 0x20000;
pub const STATUS_OP_REMOTE_RDMA_WRITE: u32 = 0x30000;
pub const STATUS_OP_RDMA_READ: u32 = 0x40000;
pub const STATUS_IMMEDIATE: u32 = 0x80000;

pub const SERVICE_UNRELIABLE: u16 = 1;
pub const SERVICE_RELIABLE_DELIVERY: u16 = 2;
pub const SERVICE_RELIABLE_RECEPTION: u16 = 4;

/// A handle: a number of the library's.
pub type Handle = *mut c_void;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipControlSegment {
    pub next: u64,
    pub next_handle: u32,
    pub seg_count: u16,
    pub control: u16,
    pub reserved: u32,
    pub immediate_data: u32,
    pub length: u32,
    pub status: u32,
}

/// An address segment (the last word is reserved) or a data segment (it is the length).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VipSegment {
    pub data: u64,
    pub handle: u32,
    pub length: u32,
}

/// A descriptor. Of its segments there are as many as the control segment says.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipDescriptor {
    pub control: VipControlSegment,
    pub segments: [VipSegment; 2],
}

const _: () = assert!(size_of::<VipControlSegment>() == 32 && size_of::<VipSegment>() == 16);
const _: () = assert!(std::mem::offset_of!(VipControlSegment, status) == 28);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipViAttributes {
    pub reliability_level: u16,
    pub max_transfer_size: c_ulong,
    pub qos: *mut c_void,
    pub ptag: Handle,
    pub enable_rdma_write: c_int,
    pub enable_rdma_read: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipMemAttributes {
    pub ptag: Handle,
    pub enable_rdma_write: c_int,
    pub enable_rdma_read: c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipNicAttributes {
    pub name: [c_char; 64],
    pub hardware_version: c_ulong,
    pub provider_version: c_ulong,
    pub nic_address_len: u16,
    pub local_nic_address: *const u8,
    pub thread_safe: c_int,
    pub max_discriminator_len: u16,
    pub max_register_bytes: c_ulong,
    pub max_register_regions: c_ulong,
    pub max_register_block_bytes: c_ulong,
    pub max_vi: c_ulong,
    pub max_descriptors_per_queue: c_ulong,
    pub max_segments_per_desc: c_ulong,
    pub max_cq: c_ulong,
    pub max_cq_entries: c_ulong,
    pub max_transfer_size: c_ulong,
    pub native_mtu: c_ulong,
    pub max_ptags: c_ulong,
    pub reliability_level_support: u16,
    pub rdma_read_support: u16,
}

/// The head of a network address; its bytes follow: the host's and then the discriminator's.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipNetAddress {
    pub host_address_len: u16,
    pub discriminator_len: u16,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VipErrorDescriptor {
    pub nic_handle: Handle,
    pub vi_handle: Handle,
    pub cq_handle: Handle,
    pub descriptor: *mut VipDescriptor,
    pub op_code: c_ulong,
    pub resource_code: c_int,
    pub error_code: VipErrorCode,
}

/// `VIP_RESOURCE_VI`.
pub const RESOURCE_VI: c_int = 1;
/// `VIP_STATE_*`.
pub const STATE_IDLE: c_int = 0;
pub const STATE_CONNECTED: c_int = 1;
pub const STATE_ERROR: c_int = 3;
