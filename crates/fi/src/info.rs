//! What the provider offers (`fi_getinfo`): one kind of endpoint, and of that only what works.
//!
//! An answer belongs to libfabric, which gives it back with `free` (`fi_freeinfo`): it is made of `calloc` and of plain words.

use crate::address::{Address, SOCKADDR_LEN};
use crate::sys::{self, DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use toe_abi::via::NodeName;
use toe_via::core::operation::{DATA_MAX, HEADER_LEN};
use toe_via::endpoint::post::PARTS_MAX;
use toe_via::endpoint::{RECEIVES_MAX, SENDS_MAX};
use toe_via::session::{Session, own_name};

pub const PROVIDER: &CStr = c"toe";
const FABRIC: &CStr = c"toe";
const DOMAIN: &CStr = c"via";
pub const VERSION: u32 = sys::version(0, 1);

/// What an injected message may have: it goes in one fragment.
pub const INJECT_MAX: usize = toe_abi::via::FRAGMENT_MAX as usize - HEADER_LEN;

const TX_CAPS: u64 = sys::MSG | sys::RMA | sys::SEND | sys::READ | sys::WRITE;
const RX_CAPS: u64 = sys::MSG | sys::RMA | sys::RECV | sys::REMOTE_READ | sys::REMOTE_WRITE;
/// Nodes are names at one engine: those of this name are local, all others remote.
const DOMAIN_CAPS: u64 = sys::LOCAL_COMM | sys::REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
const TX_OP_FLAGS: u64 =
    sys::COMPLETION | sys::INJECT_COMPLETE | sys::TRANSMIT_COMPLETE | sys::INJECT | sys::MORE;
const RX_OP_FLAGS: u64 = sys::COMPLETION;
/// A connection is one stream of operations. What follows a read may be there before the read is answered: no writes and no sends after reads
/// (FI_ORDER_WAR, FI_ORDER_SAR).
const ORDER: u64 = sys::ORDER_STRICT & !(1 << 3 | 1 << 6);
const COMP_ORDER: u64 = 0;

/// Protocols below 0x8000_0000 are libfabric's.
const PROTOCOL: u32 = 0x8000_0000 | 0x7645;

/// Memory of C's, zeroed. `None`: there is none.
///
/// # Safety
/// All zeros are a `T`.
unsafe fn zeroed<T>() -> Option<*mut T> {
    // SAFETY: needed because libfabric gives it back with free.
    let made = unsafe { libc::calloc(1, size_of::<T>()) }.cast::<T>();
    (!made.is_null()).then_some(made)
}

/// An answer in the making; freed unless it is taken.
struct Made(*mut Info);

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: needed to give back what was not handed out: made by `bare` and nobody else's.
        unsafe { free(self.0) };
    }
}

/// # Safety
/// An answer of [`make`]'s, or part of one, that nobody has.
pub unsafe fn free(info: *mut Info) {
    // SAFETY: needed as above; all are null or from calloc and strdup.
    unsafe {
        let Some(info) = info.as_mut() else { return };
        if let Some(attr) = info.domain_attr.as_mut() {
            libc::free(attr.name.cast());
        }
        if let Some(attr) = info.fabric_attr.as_mut() {
            libc::free(attr.name.cast());
        }
        for part in [
            info.src_addr,
            info.dest_addr,
            info.tx_attr.cast(),
            info.rx_attr.cast(),
            info.ep_attr.cast(),
            info.domain_attr.cast(),
            info.fabric_attr.cast(),
        ] {
            libc::free(part);
        }
        libc::free(std::ptr::from_mut(info).cast());
    }
}

fn sockaddr(address: Option<Address>) -> Option<(*mut c_void, usize)> {
    let Some(address) = address else { return Some((null_mut(), 0)) };
    // SAFETY: needed as in `zeroed`; all zeros are bytes.
    let made = unsafe { zeroed::<[u8; SOCKADDR_LEN]>() }?;
    // SAFETY: needed to fill in what was made just now.
    unsafe { *made = address.to_sockaddr() };
    Some((made.cast(), SOCKADDR_LEN))
}

fn tx_attr() -> TxAttr {
    TxAttr {
        caps: TX_CAPS,
        mode: 0,
        op_flags: 0,
        msg_order: ORDER,
        comp_order: COMP_ORDER,
        inject_size: INJECT_MAX,
        size: SENDS_MAX,
        iov_limit: PARTS_MAX,
        rma_iov_limit: 1,
        tclass: 0,
    }
}

fn rx_attr() -> RxAttr {
    RxAttr {
        caps: RX_CAPS,
        mode: 0,
        op_flags: 0,
        msg_order: ORDER,
        comp_order: COMP_ORDER,
        total_buffered_recv: 0,
        size: RECEIVES_MAX,
        iov_limit: PARTS_MAX,
    }
}

fn ep_attr() -> EpAttr {
    EpAttr {
        ep_type: sys::EP_MSG,
        protocol: PROTOCOL,
        protocol_version: 1,
        max_msg_size: DATA_MAX as usize,
        msg_prefix_size: 0,
        max_order_raw_size: 0,
        max_order_war_size: 0,
        max_order_waw_size: DATA_MAX as usize,
        mem_tag_format: 0,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: null_mut(),
    }
}

fn domain_attr(mr_mode: c_int) -> DomainAttr {
    DomainAttr {
        domain: null_mut(),
        name: null_mut(),
        threading: sys::THREAD_SAFE,
        control_progress: sys::PROGRESS_MANUAL,
        data_progress: sys::PROGRESS_MANUAL,
        resource_mgmt: sys::RM_ENABLED,
        av_type: sys::AV_UNSPEC,
        mr_mode,
        mr_key_size: 4,
        cq_data_size: 4,
        cq_cnt: 1 << 10,
        ep_cnt: toe_abi::via::HANDLES_MAX,
        tx_ctx_cnt: toe_abi::via::HANDLES_MAX,
        rx_ctx_cnt: toe_abi::via::HANDLES_MAX,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: 0,
        cntr_cnt: 0,
        mr_iov_limit: 1,
        caps: DOMAIN_CAPS,
        mode: 0,
        auth_key: null_mut(),
        auth_key_size: 0,
        max_err_data: 0,
        mr_cnt: 1 << 16,
        tclass: 0,
    }
}

/// An answer, for addresses.
pub fn make(api: u32, mr_mode: c_int, source: Option<Address>, target: Option<Address>) -> Option<*mut Info> {
    // SAFETY: needed to make what libfabric frees: all zeros are null pointers and zeros.
    let made = Made(unsafe { zeroed()? });
    // SAFETY: needed to fill it in: made just now, and nobody else's.
    let info = unsafe { &mut *made.0 };
    info.caps = CAPS;
    info.addr_format = sys::SOCKADDR_IN6;
    (info.src_addr, info.src_addrlen) = sockaddr(source)?;
    (info.dest_addr, info.dest_addrlen) = sockaddr(target)?;
    // SAFETY: needed as above, of each attribute.
    unsafe {
        info.tx_attr = zeroed()?;
        *info.tx_attr = tx_attr();
        info.rx_attr = zeroed()?;
        *info.rx_attr = rx_attr();
        info.ep_attr = zeroed()?;
        *info.ep_attr = ep_attr();
        info.domain_attr = zeroed()?;
        *info.domain_attr = domain_attr(mr_mode);
        (*info.domain_attr).name = libc::strdup(DOMAIN.as_ptr());
        info.fabric_attr = zeroed::<FabricAttr>()?;
        (*info.fabric_attr).name = libc::strdup(FABRIC.as_ptr());
        (*info.fabric_attr).api_version = api;
    }
    let info = made.0;
    std::mem::forget(made);
    Some(info)
}

const fn within(wanted: u64, offered: u64) -> bool {
    wanted & !offered == 0
}

/// Whether a name that was asked for is this one.
///
/// # Safety
/// Null or a string of C's.
unsafe fn names(wanted: *const c_char, offered: &CStr) -> bool {
    // SAFETY: needed to read what the caller has promised.
    wanted.is_null() || unsafe { CStr::from_ptr(wanted) } == offered
}

fn fits_tx(wanted: &TxAttr) -> bool {
    let offered = tx_attr();
    within(wanted.caps, CAPS)
        && within(wanted.op_flags, TX_OP_FLAGS)
        && within(wanted.msg_order, offered.msg_order)
        && within(wanted.comp_order, offered.comp_order)
        && wanted.inject_size <= offered.inject_size
        && wanted.size <= offered.size
        && wanted.iov_limit <= offered.iov_limit
        && wanted.rma_iov_limit <= offered.rma_iov_limit
}

fn fits_rx(wanted: &RxAttr) -> bool {
    let offered = rx_attr();
    within(wanted.caps, CAPS)
        && within(wanted.op_flags, RX_OP_FLAGS)
        && within(wanted.msg_order, offered.msg_order)
        && within(wanted.comp_order, offered.comp_order)
        && wanted.total_buffered_recv == 0
        && wanted.size <= offered.size
        && wanted.iov_limit <= offered.iov_limit
}

fn fits_ep(wanted: &EpAttr) -> bool {
    let offered = ep_attr();
    matches!(wanted.ep_type, sys::EP_UNSPEC | sys::EP_MSG)
        && (wanted.protocol == 0 || wanted.protocol == PROTOCOL)
        && wanted.max_msg_size <= offered.max_msg_size
        && wanted.max_order_raw_size <= offered.max_order_raw_size
        && wanted.max_order_war_size <= offered.max_order_war_size
        && wanted.max_order_waw_size <= offered.max_order_waw_size
        && wanted.tx_ctx_cnt <= 1
        && wanted.rx_ctx_cnt <= 1
        && wanted.auth_key_size == 0
}

/// # Safety
/// Its name is null or a string of C's.
unsafe fn fits_domain(wanted: &DomainAttr) -> bool {
    let offered = domain_attr(0);
    let progress = [wanted.control_progress, wanted.data_progress];
    progress.iter().all(|wanted| [sys::PROGRESS_UNSPEC, sys::PROGRESS_MANUAL].contains(wanted))
        // SAFETY: needed as above.
        && unsafe { names(wanted.name, DOMAIN) }
        && within(wanted.caps, DOMAIN_CAPS)
        && wanted.mr_key_size <= offered.mr_key_size
        && wanted.cq_data_size <= offered.cq_data_size
        && wanted.cntr_cnt == 0
        && wanted.mr_iov_limit <= offered.mr_iov_limit
        && wanted.max_ep_stx_ctx == 0
        && wanted.max_ep_srx_ctx == 0
        && wanted.auth_key_size == 0
        // Addressing by offsets and keys of the program's choice needs no mode; of the two old ones it is the second.
        && wanted.mr_mode != sys::MR_BASIC
}

/// # Safety
/// Hints as `fi_getinfo` has them.
unsafe fn fits(hints: &Info) -> bool {
    // SAFETY: needed to read the hints; each part is null or as libfabric has it.
    unsafe {
        within(hints.caps, CAPS)
            && [sys::FORMAT_UNSPEC, sys::SOCKADDR, sys::SOCKADDR_IN6].contains(&hints.addr_format)
            && hints.tx_attr.as_ref().is_none_or(fits_tx)
            && hints.rx_attr.as_ref().is_none_or(fits_rx)
            && hints.ep_attr.as_ref().is_none_or(fits_ep)
            && hints.domain_attr.as_ref().is_none_or(|attr| fits_domain(attr))
            && hints.fabric_attr.as_ref().is_none_or(|attr| names(attr.name, FABRIC))
    }
}

/// The address that hints have; `Err`: it is of another kind.
///
/// # Safety
/// `len` bytes, or null.
pub unsafe fn read_address(address: *const c_void, len: usize) -> Result<Option<Address>, c_int> {
    if address.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: needed to read what the caller has promised.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
    Address::from_sockaddr(bytes).map(Some).ok_or(libc::ENODATA)
}

/// # Safety
/// Null or a string of C's.
unsafe fn text<'a>(from: *const c_char) -> Result<Option<&'a str>, c_int> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: needed as above.
    unsafe { CStr::from_ptr(from) }.to_str().map(Some).map_err(|_| libc::ENODATA)
}

/// Where it comes from and where it goes, of what a program has asked with.
fn addresses(
    (node, service): (Option<&str>, Option<&str>),
    is_source: bool,
    (source, target): (Option<Address>, Option<Address>),
    own: &NodeName,
) -> Result<(Address, Option<Address>), c_int> {
    let port = match service {
        Some(service) => service.parse::<u16>().map_err(|_| libc::ENODATA)?,
        None => 0,
    };
    let named = (node.is_some() || service.is_some()).then(|| Address::parse(node, own, port));
    let source = match source {
        _ if is_source && port != 0 => named,
        source => source,
    };
    let target = if is_source { target } else { named.or(target) };
    Ok((source.unwrap_or_else(|| Address::own(own)), target))
}

fn get(
    api: u32,
    names: (Option<&str>, Option<&str>),
    flags: u64,
    hints: Option<&Info>,
) -> Result<*mut Info, c_int> {
    // SAFETY: needed to read the hints, which are as `fi_getinfo` has them.
    if hints.is_some_and(|hints| unsafe { !fits(hints) }) || !Session::is_possible() {
        return Err(libc::ENODATA);
    }
    let own = own_name().map_err(|_| libc::ENODATA)?;
    let (source, target) = match hints {
        // SAFETY: needed as above.
        Some(hints) => unsafe {
            (
                read_address(hints.src_addr, hints.src_addrlen)?,
                read_address(hints.dest_addr, hints.dest_addrlen)?,
            )
        },
        None => (None, None),
    };
    let (source, target) = addresses(names, flags & sys::SOURCE != 0, (source, target), &own)?;
    // SAFETY: needed as above.
    let wanted = hints.and_then(|hints| unsafe { hints.domain_attr.as_ref() }).map_or(0, |attr| attr.mr_mode);
    let is_old = api < sys::version(1, 5);
    let mr_mode = if is_old || wanted & sys::MR_SCALABLE != 0 { sys::MR_SCALABLE } else { 0 };
    make(api, mr_mode, Some(source), target).ok_or(libc::ENOMEM)
}

/// `fi_getinfo` for this provider.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn getinfo(
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int {
    // SAFETY: needed to read what libfabric passes: strings and hints, or null.
    let (names, hints) = unsafe { (text(node).and_then(|node| Ok((node, text(service)?))), hints.as_ref()) };
    match names.and_then(|names| get(api, names, flags, hints)) {
        Ok(made) => {
            // SAFETY: needed to answer where libfabric wants it.
            unsafe { info.write(made) };
            0
        }
        Err(errno) => -errno,
    }
}
