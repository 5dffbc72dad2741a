//! What of libfabric's public headers (1.17, ABI 1.6) the provider needs, by hand: `rdma/fabric.h`, `fi_eq.h`, `fi_cm.h`, `fi_endpoint.h`, `fi_domain.h`, `fi_rma.h`,
//! `fi_errno.h`, `providers/fi_prov.h`. So nothing has to be installed to build it. Layouts and numbers are those headers'; what is not used is left out, but not in
//! the middle of a structure. `crates/tests` compares them with the headers where those are.
#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_void};

pub use libc::iovec;
pub type Ssize = isize;

pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const TRANSMIT: u64 = SEND;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const MORE: u64 = 1 << 18;
pub const PEEK: u64 = 1 << 19;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const SOURCE: u64 = 1 << 57;
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

pub const FORMAT_UNSPEC: u32 = 0;
pub const SOCKADDR: u32 = 1;
pub const SOCKADDR_IN6: u32 = 3;

pub const EP_UNSPEC: u32 = 0;
pub const EP_MSG: u32 = 1;
pub const PROGRESS_UNSPEC: u32 = 0;
pub const PROGRESS_MANUAL: u32 = 2;
pub const THREAD_SAFE: u32 = 1;
pub const RM_ENABLED: u32 = 2;
pub const AV_UNSPEC: u32 = 0;
pub const MR_BASIC: c_int = 1;
pub const MR_SCALABLE: c_int = 2;
pub const ORDER_STRICT: u64 = 0x1ff;

pub const WAIT_NONE: u32 = 0;
pub const WAIT_UNSPEC: u32 = 1;
pub const WAIT_FD: u32 = 3;
pub const WAIT_YIELD: u32 = 5;
pub const CQ_COND_NONE: u32 = 0;

pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_PEP: usize = 9;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CONNREQ: usize = 18;

pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;
pub const BACKLOG: c_int = 7;
pub const GETWAITOBJ: c_int = 16;
pub const OPT_ENDPOINT: c_int = 0;
pub const OPT_CM_DATA_SIZE: c_int = 1;

pub const NOTIFY: u32 = 0;
pub const CONNREQ: u32 = 1;
pub const CONNECTED: u32 = 2;
pub const SHUTDOWN: u32 = 3;

pub const CQ_FORMAT_UNSPEC: u32 = 0;
pub const CQ_FORMAT_CONTEXT: u32 = 1;
pub const CQ_FORMAT_MSG: u32 = 2;
pub const CQ_FORMAT_DATA: u32 = 3;
pub const CQ_FORMAT_TAGGED: u32 = 4;

pub const ETOOSMALL: c_int = 257;
pub const EOPBADSTATE: c_int = 258;
pub const EAVAIL: c_int = 259;
pub const ENOEQ: c_int = 261;
pub const ENOCQ: c_int = 263;
pub const ETRUNC: c_int = 265;
pub const ENOKEY: c_int = 266;

/// What a fabric, domain, endpoint, queue or region begins with.
#[derive(Debug)]
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}

pub type FidPtr = *mut Fid;

#[derive(Debug)]
#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(FidPtr) -> c_int,
    pub bind: unsafe extern "C" fn(FidPtr, FidPtr, u64) -> c_int,
    pub control: unsafe extern "C" fn(FidPtr, c_int, *mut c_void) -> c_int,
    pub ops_open: unsafe extern "C" fn(FidPtr, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpAttr {
    pub ep_type: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[derive(Debug)]
#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: FidPtr,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[derive(Debug)]
#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub fi_version: u32,
    /// libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo:
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut FidPtr, *mut c_void) -> c_int,
    pub cleanup: unsafe extern "C" fn(),
}

#[derive(Debug)]
#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(FidPtr, *mut Info, *mut FidPtr, *mut c_void) -> c_int,
    pub passive_ep: unsafe extern "C" fn(FidPtr, *mut Info, *mut FidPtr, *mut c_void) -> c_int,
    pub eq_open: unsafe extern "C" fn(FidPtr, *mut EqAttr, *mut FidPtr, *mut c_void) -> c_int,
    pub wait_open: unsafe extern "C" fn(FidPtr, *mut c_void, *mut FidPtr) -> c_int,
    pub trywait: unsafe extern "C" fn(FidPtr, *mut FidPtr, c_int) -> c_int,
}

type Open<A> = unsafe extern "C" fn(FidPtr, *mut A, *mut FidPtr, *mut c_void) -> c_int;

#[derive(Debug)]
#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: Open<c_void>,
    pub cq_open: Open<CqAttr>,
    pub endpoint: Open<Info>,
    pub scalable_ep: Open<Info>,
    pub cntr_open: Open<c_void>,
    pub poll_open: unsafe extern "C" fn(FidPtr, *mut c_void, *mut FidPtr) -> c_int,
    pub stx_ctx: Open<c_void>,
    pub srx_ctx: Open<c_void>,
    pub query_atomic: unsafe extern "C" fn(FidPtr, c_int, c_int, *mut c_void, u64) -> c_int,
    pub query_collective: unsafe extern "C" fn(FidPtr, c_int, *mut c_void, u64) -> c_int,
}

#[derive(Debug)]
#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: u32,
    pub device: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct MrOps {
    pub size: usize,
    #[allow(clippy::type_complexity, reason = "the header has so many arguments")]
    pub reg: unsafe extern "C" fn(
        FidPtr,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut MrFid,
        *mut c_void,
    ) -> c_int,
    #[allow(clippy::type_complexity, reason = "the header has so many arguments")]
    pub regv: unsafe extern "C" fn(
        FidPtr,
        *const iovec,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut MrFid,
        *mut c_void,
    ) -> c_int,
    pub regattr: unsafe extern "C" fn(FidPtr, *const MrAttr, u64, *mut *mut MrFid) -> c_int,
}

#[derive(Debug)]
#[repr(C)]
pub struct FabricFid {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

#[derive(Debug)]
#[repr(C)]
pub struct DomainFid {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[derive(Debug)]
#[repr(C)]
pub struct MrFid {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

#[derive(Debug)]
#[repr(C)]
pub struct EqEntry {
    pub fid: FidPtr,
    pub context: *mut c_void,
    pub data: u64,
}

/// What a connection's events are told in, before their data.
#[derive(Debug)]
#[repr(C)]
pub struct EqCmEntry {
    pub fid: FidPtr,
    pub info: *mut Info,
}

#[derive(Debug)]
#[repr(C)]
pub struct EqErrEntry {
    pub fid: FidPtr,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

type Strerror = unsafe extern "C" fn(FidPtr, c_int, *const c_void, *mut c_char, usize) -> *const c_char;

#[derive(Debug)]
#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(FidPtr, *mut u32, *mut c_void, usize, u64) -> Ssize,
    pub readerr: unsafe extern "C" fn(FidPtr, *mut EqErrEntry, u64) -> Ssize,
    pub write: unsafe extern "C" fn(FidPtr, u32, *const c_void, usize, u64) -> Ssize,
    pub sread: unsafe extern "C" fn(FidPtr, *mut u32, *mut c_void, usize, c_int, u64) -> Ssize,
    pub strerror: Strerror,
}

#[derive(Debug)]
#[repr(C)]
pub struct EqFid {
    pub fid: Fid,
    pub ops: *const EqOps,
}

#[derive(Debug)]
#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

/// The longest of the formats; each is the beginning of the next.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct CqErrEntry {
    pub entry: CqTaggedEntry,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[derive(Debug)]
#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(FidPtr, *mut c_void, usize) -> Ssize,
    pub readfrom: unsafe extern "C" fn(FidPtr, *mut c_void, usize, *mut u64) -> Ssize,
    pub readerr: unsafe extern "C" fn(FidPtr, *mut CqErrEntry, u64) -> Ssize,
    pub sread: unsafe extern "C" fn(FidPtr, *mut c_void, usize, *const c_void, c_int) -> Ssize,
    pub sreadfrom: unsafe extern "C" fn(FidPtr, *mut c_void, usize, *mut u64, *const c_void, c_int) -> Ssize,
    pub signal: unsafe extern "C" fn(FidPtr) -> c_int,
    pub strerror: Strerror,
}

#[derive(Debug)]
#[repr(C)]
pub struct CqFid {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[derive(Debug)]
#[repr(C)]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(FidPtr, *mut c_void) -> Ssize,
    pub getopt: unsafe extern "C" fn(FidPtr, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(FidPtr, c_int, c_int, *const c_void, usize) -> c_int,
    pub tx_ctx: unsafe extern "C" fn(FidPtr, c_int, *mut TxAttr, *mut FidPtr, *mut c_void) -> c_int,
    pub rx_ctx: unsafe extern "C" fn(FidPtr, c_int, *mut RxAttr, *mut FidPtr, *mut c_void) -> c_int,
    pub rx_size_left: unsafe extern "C" fn(FidPtr) -> Ssize,
    pub tx_size_left: unsafe extern "C" fn(FidPtr) -> Ssize,
}

#[derive(Debug)]
#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: unsafe extern "C" fn(FidPtr, *mut c_void, usize) -> c_int,
    pub getname: unsafe extern "C" fn(FidPtr, *mut c_void, *mut usize) -> c_int,
    pub getpeer: unsafe extern "C" fn(FidPtr, *mut c_void, *mut usize) -> c_int,
    pub connect: unsafe extern "C" fn(FidPtr, *const c_void, *const c_void, usize) -> c_int,
    pub listen: unsafe extern "C" fn(FidPtr) -> c_int,
    pub accept: unsafe extern "C" fn(FidPtr, *const c_void, usize) -> c_int,
    pub reject: unsafe extern "C" fn(FidPtr, FidPtr, *const c_void, usize) -> c_int,
    pub shutdown: unsafe extern "C" fn(FidPtr, u64) -> c_int,
    pub join: unsafe extern "C" fn(FidPtr, *const c_void, u64, *mut *mut c_void, *mut c_void) -> c_int,
}

#[derive(Debug)]
#[repr(C)]
pub struct Msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct MsgRma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

type Buf = unsafe extern "C" fn(FidPtr, *const c_void, usize, *mut c_void, u64, *mut c_void) -> Ssize;
type Iov = unsafe extern "C" fn(FidPtr, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> Ssize;

#[derive(Debug)]
#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(FidPtr, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> Ssize,
    pub recvv: Iov,
    pub recvmsg: unsafe extern "C" fn(FidPtr, *const Msg, u64) -> Ssize,
    pub send: Buf,
    pub sendv: Iov,
    pub sendmsg: unsafe extern "C" fn(FidPtr, *const Msg, u64) -> Ssize,
    pub inject: unsafe extern "C" fn(FidPtr, *const c_void, usize, u64) -> Ssize,
    pub senddata:
        unsafe extern "C" fn(FidPtr, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> Ssize,
    pub injectdata: unsafe extern "C" fn(FidPtr, *const c_void, usize, u64, u64) -> Ssize,
}

type RmaIovFn =
    unsafe extern "C" fn(FidPtr, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> Ssize;

#[derive(Debug)]
#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read:
        unsafe extern "C" fn(FidPtr, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> Ssize,
    pub readv: RmaIovFn,
    pub readmsg: unsafe extern "C" fn(FidPtr, *const MsgRma, u64) -> Ssize,
    pub write:
        unsafe extern "C" fn(FidPtr, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> Ssize,
    pub writev: RmaIovFn,
    pub writemsg: unsafe extern "C" fn(FidPtr, *const MsgRma, u64) -> Ssize,
    pub inject: unsafe extern "C" fn(FidPtr, *const c_void, usize, u64, u64, u64) -> Ssize,
    #[allow(clippy::type_complexity, reason = "the header has so many arguments")]
    pub writedata: unsafe extern "C" fn(
        FidPtr,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> Ssize,
    pub injectdata: unsafe extern "C" fn(FidPtr, *const c_void, usize, u64, u64, u64, u64) -> Ssize,
}

#[derive(Debug)]
#[repr(C)]
pub struct EpFid {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
    pub tagged: *const c_void,
    pub atomic: *const c_void,
    pub collective: *const c_void,
}

#[derive(Debug)]
#[repr(C)]
pub struct PepFid {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const CmOps,
}
