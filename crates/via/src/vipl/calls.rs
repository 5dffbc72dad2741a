//! The functions of `include/vipl.h`, where what each does is said. Pointers are the caller's promise.

use super::handle_number::*;
use super::handles::*;
use super::memory::MemoryAttributes;
use super::nic::{CQ_ENTRIES_MAX, Callback, CompletionQueue, Handler, Interface, Nic};
use super::types::*;
use super::vi::{Service, State};
use crate::core::operation::DATA_MAX;

use crate::link::Link;
use crate::lock::lock;
use crate::meet::{self, Listener};
use crate::session::Session;
use crate::sleep::Deadline;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::via::{Attributes, NAME_LEN, NodeName, ViaState};

#[unsafe(no_mangle)]
unsafe extern "C" fn VipOpenNic(device: *const c_char, nic: *mut Handle) -> VipReturn {
    // SAFETY: needed to read the name; that it is a string the caller has promised.
    let is_known =
        device.is_null() || [&b""[..], b"toe"].contains(&unsafe { CStr::from_ptr(device) }.to_bytes());
    if nic.is_null() || !is_known {
        return VipReturn::InvalidParameter;
    }
    let opened = || {
        let session = Session::get()?;
        NICS.add(Arc::new(Nic::new(session))).ok_or(VipReturn::ErrorResource)
    };
    match opened() {
        Ok(made) => {
            // SAFETY: needed to answer; it is not NULL.
            unsafe { fill(nic, handle(Kind::Nic, made)) };
            VipReturn::Success
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn VipCloseNic(nic: Handle) -> VipReturn {
    status(nic_of(nic).and_then(|found| {
        if found.things.load(Ordering::Relaxed) > 0 {
            return Err(VipReturn::ErrorResource);
        }
        number(Kind::Nic, nic)
            .and_then(|number| NICS.remove(number))
            .map(drop)
            .ok_or(VipReturn::InvalidParameter)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryNic(nic: Handle, attributes: *mut VipNicAttributes) -> VipReturn {
    let found = match nic_of(nic) {
        Ok(found) if !attributes.is_null() => found,
        _ => return VipReturn::InvalidParameter,
    };
    // SAFETY: needed to answer; the structure lies in the caller's memory, and its bytes may be anything.
    let to = unsafe { &mut *attributes };
    let name: Vec<c_char> = b"toe\0".iter().map(|byte| *byte as c_char).collect();
    to.name = [0; 64];
    to.name[..name.len()].copy_from_slice(&name);
    (to.hardware_version, to.provider_version) = (0, 1);
    to.nic_address_len = found.session.node.as_bytes().len() as u16;
    to.local_nic_address = found.session.node.as_bytes().as_ptr();
    (to.thread_safe, to.max_discriminator_len) = (1, DISCRIMINATOR_LEN);
    (to.max_register_bytes, to.max_register_block_bytes) = (c_ulong::MAX, c_ulong::MAX);
    to.max_register_regions = super::memory::REGIONS_MAX as c_ulong;
    to.max_vi = toe_abi::via::HANDLES_MAX as c_ulong;
    to.max_descriptors_per_queue = super::vi::QUEUE_MAX as c_ulong;
    to.max_segments_per_desc = super::descriptor::SEGMENTS_MAX as c_ulong;
    (to.max_cq, to.max_cq_entries) = (1 << 12, CQ_ENTRIES_MAX as c_ulong);
    (to.max_transfer_size, to.native_mtu) = (DATA_MAX.into(), toe_abi::via::FRAGMENT_MAX.into());
    to.max_ptags = super::memory::PTAGS_MAX as c_ulong;
    to.reliability_level_support =
        SERVICE_UNRELIABLE | SERVICE_RELIABLE_DELIVERY | SERVICE_RELIABLE_RECEPTION;
    to.rdma_read_support = SERVICE_RELIABLE_DELIVERY | SERVICE_RELIABLE_RECEPTION;
    VipReturn::Success
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipErrorCallback(nic: Handle, context: Handle, handler: Option<Handler>) -> VipReturn {
    status(nic_of(nic).map(|nic| {
        *lock(&nic.callback) = handler.map(|handler| Callback { handler, context: context as usize });
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreatePtag(nic: Handle, ptag: *mut Handle) -> VipReturn {
    // SAFETY: needed to answer.
    let made = nic_of(nic).and_then(|nic| nic.registry_mut().create_ptag());
    // SAFETY: needed to answer.
    status(made.map(|made| unsafe { fill(ptag, ptag_handle(made)) }))
}

#[unsafe(no_mangle)]
extern "C" fn VipDestroyPtag(nic: Handle, ptag: Handle) -> VipReturn {
    status(nic_of(nic).and_then(|nic| nic.registry_mut().destroy_ptag(ptag_of(ptag)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipRegisterMem(
    nic: Handle,
    address: *mut u8,
    len: c_ulong,
    attributes: *const VipMemAttributes,
    memory: *mut u32,
) -> VipReturn {
    let registered = || {
        // SAFETY: needed to read the argument.
        let wanted = unsafe { given(attributes) }?;
        let attributes = MemoryAttributes {
            ptag: ptag_of(wanted.ptag)?,
            may_write: wanted.enable_rdma_write != 0,
            may_read: wanted.enable_rdma_read != 0,
        };
        if memory.is_null() || !is_mapped(address as usize, len as usize) {
            return Err(VipReturn::InvalidParameter);
        }
        nic_of(nic)?.registry_mut().register(address as u64, len, attributes)
    };
    // SAFETY: needed to answer.
    status(registered().map(|made| unsafe { fill(memory, made) }))
}

/// Whether there is memory everywhere.
fn is_mapped(start: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    let (first, end) = (start & !(page - 1), start.saturating_add(len));
    // SAFETY: needed to ask the system, which touches nothing: what is asked of it is to begin to write back what a file has of the range.
    len > 0
        && unsafe { rustix::mm::msync(first as *mut _, end - first, rustix::mm::MsyncFlags::ASYNC) }.is_ok()
}

#[unsafe(no_mangle)]
extern "C" fn VipDeregisterMem(nic: Handle, address: *mut u8, memory: u32) -> VipReturn {
    status(nic_of(nic).and_then(|nic| nic.registry_mut().deregister(address as u64, memory)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryMem(
    nic: Handle,
    address: *mut u8,
    memory: u32,
    to: *mut VipMemAttributes,
) -> VipReturn {
    let found = nic_of(nic).and_then(|nic| nic.registry().attributes(address as u64, memory));
    status(found.map(|found| {
        let reported = VipMemAttributes {
            ptag: ptag_handle(found.ptag),
            enable_rdma_write: found.may_write.into(),
            enable_rdma_read: found.may_read.into(),
        };
        // SAFETY: needed to answer.
        unsafe { fill(to, reported) }
    }))
}

fn service_of(wanted: VipViAttributes) -> Result<Service, VipReturn> {
    let level = match wanted.reliability_level {
        SERVICE_UNRELIABLE => 0,
        SERVICE_RELIABLE_DELIVERY => 1,
        SERVICE_RELIABLE_RECEPTION => 2,
        _ => return Err(VipReturn::InvalidReliabilityLevel),
    };
    if wanted.max_transfer_size > DATA_MAX.into() {
        return Err(VipReturn::InvalidMtu);
    }
    if !wanted.qos.is_null() {
        return Err(VipReturn::InvalidQos);
    }
    if wanted.enable_rdma_read != 0 && level == 0 {
        return Err(VipReturn::InvalidRdmaread);
    }
    let transfer_max = if wanted.max_transfer_size == 0 { DATA_MAX } else { wanted.max_transfer_size as u32 };
    let (may_write, may_read) = (wanted.enable_rdma_write != 0, wanted.enable_rdma_read != 0);
    Ok(Service { level, ptag: ptag_of(wanted.ptag)?, may_write, may_read, transfer_max })
}

/// As an attribute structure, without the tag, which is nobody else's business.
fn vi_attributes(attributes: Attributes) -> VipViAttributes {
    let max = attributes.message_max();
    VipViAttributes {
        reliability_level: SERVICE_UNRELIABLE << attributes.level().min(2),
        max_transfer_size: if max == 0 { DATA_MAX.into() } else { max.into() },
        qos: std::ptr::null_mut(),
        ptag: std::ptr::null_mut(),
        enable_rdma_write: attributes.may_write().into(),
        enable_rdma_read: attributes.may_read().into(),
    }
}

fn attributes_of(service: &Service) -> Attributes {
    Attributes::operations(service.level, service.may_write, service.may_read, service.transfer_max)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateVi(
    nic: Handle,
    attributes: *const VipViAttributes,
    send_queue: Handle,
    receive_queue: Handle,
    vi: *mut Handle,
) -> VipReturn {
    let created = || {
        // SAFETY: needed to read the argument.
        let service = service_of(unsafe { given(attributes) }?)?;
        let queue = |handle: Handle| if handle.is_null() { Ok(None) } else { queue_of(handle).map(Some) };
        let queues = [queue(send_queue)?, queue(receive_queue)?];
        let interface = Interface::create((nic_of(nic)?, nic as usize), service, queues)?;
        let number = INTERFACES.add(Arc::clone(&interface)).ok_or(VipReturn::ErrorResource)?;
        interface.handle.store(number, Ordering::Relaxed);
        Ok(number)
    };
    // SAFETY: needed to answer.
    status(created().map(|number| unsafe { fill(vi, vi_handle(number)) }))
}

#[unsafe(no_mangle)]
extern "C" fn VipDestroyVi(vi: Handle) -> VipReturn {
    status(interface_of(vi).and_then(|found| {
        if lock(&found.inside).state == State::Connected {
            return Err(VipReturn::InvalidState);
        }
        number(Kind::Interface, vi)
            .map(|number| drop(INTERFACES.remove(number)))
            .ok_or(VipReturn::InvalidParameter)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryVi(
    vi: Handle,
    state: *mut c_int,
    attributes: *mut VipViAttributes,
    no_sends: *mut c_int,
    no_receives: *mut c_int,
) -> VipReturn {
    status(interface_of(vi).map(|found| {
        found.progress();
        let inside = lock(&found.inside);
        let stands = match inside.state {
            State::Idle => STATE_IDLE,
            State::Connected => STATE_CONNECTED,
            State::Error => STATE_ERROR,
        };
        let own = VipViAttributes {
            ptag: ptag_handle(inside.service.ptag),
            ..vi_attributes(attributes_of(&inside.service))
        };
        // SAFETY: needed to answer.
        unsafe {
            fill(state, stands);
            fill(attributes, own);
            fill(no_sends, inside.sends.posted.is_empty().into());
            fill(no_receives, inside.receives.posted.is_empty().into());
        }
    }))
}

/// A node's name and a discriminator. An address without a name is this node's, or anybody's.
///
/// # Safety
/// `address` is NULL or has as many bytes as it says.
unsafe fn read_address(address: *const VipNetAddress) -> Result<(Option<NodeName>, u64), VipReturn> {
    // SAFETY: needed to read the argument.
    let header = unsafe { given(address) }?;
    let (host, rest) = (usize::from(header.host_address_len), usize::from(header.discriminator_len));
    if host > NAME_LEN || rest > usize::from(DISCRIMINATOR_LEN) {
        return Err(VipReturn::InvalidParameter);
    }
    // SAFETY: needed to read the bytes behind the head, which the caller has promised are there.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>().add(4), host + rest) };
    let name = match host {
        0 => None,
        _ => Some(NodeName::new(&bytes[..host]).ok_or(VipReturn::InvalidParameter)?),
    };
    let mut discriminator = [0; 8];
    discriminator[..rest].copy_from_slice(&bytes[host..]);
    Ok((name, u64::from_le_bytes(discriminator)))
}

/// # Safety
/// `address` is NULL or has room for a name and a discriminator.
unsafe fn write_address(address: *mut VipNetAddress, name: NodeName, discriminator: Option<u64>) {
    if address.is_null() {
        return;
    }
    let mut bytes = name.as_bytes().to_vec();
    let host_address_len = bytes.len() as u16;
    bytes.extend(discriminator.into_iter().flat_map(u64::to_le_bytes));
    let header = VipNetAddress { host_address_len, discriminator_len: bytes.len() as u16 - host_address_len };
    // SAFETY: needed to answer; that there is room the caller has promised.
    unsafe {
        address.write_unaligned(header);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>().add(4), bytes.len());
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectWait(
    nic: Handle,
    local: *const VipNetAddress,
    timeout: c_ulong,
    remote: *mut VipNetAddress,
    attributes: *mut VipViAttributes,
    connection: *mut Handle,
) -> VipReturn {
    let waited = || {
        let nic = nic_of(nic)?;
        // SAFETY: needed to read the argument.
        let (_, discriminator) = unsafe { read_address(local) }?;
        let deadline = Deadline::after(limit(timeout).map(Duration::from_millis));
        let mut listener = Listener::new(&nic.session, None, discriminator)?;
        loop {
            let (link, theirs) = listener.take(deadline)?;
            if theirs.are_operations() && theirs.level() <= 2 {
                let peer = link.peer;
                let asked =
                    AskedFor { nic: Arc::clone(&nic), link: std::sync::Mutex::new(Some(link)), theirs };
                let number = ASKED.add(Arc::new(asked)).ok_or(VipReturn::ErrorResource)?;
                return Ok((number, peer, discriminator, theirs));
            }
            reject(&nic, &link);
            if deadline.is_over() {
                return Err(VipReturn::Timeout);
            }
        }
    };
    status(waited().map(|(number, peer, discriminator, theirs)| {
        // SAFETY: needed to answer.
        unsafe {
            write_address(remote, peer, Some(discriminator));
            fill(attributes, vi_attributes(theirs));
            fill(connection, handle(Kind::Connection, number));
        }
    }))
}

fn reject(nic: &Nic, link: &Link) {
    link.move_on(ViaState::Rejected);
    link.forget(&nic.session);
}

#[unsafe(no_mangle)]
extern "C" fn VipConnectAccept(connection: Handle, vi: Handle) -> VipReturn {
    let accepted = || {
        let number = number(Kind::Connection, connection).ok_or(VipReturn::InvalidParameter)?;
        let asked = ASKED.get(number).ok_or(VipReturn::InvalidParameter)?;
        let interface = interface_of(vi)?;
        let service = interface.service_if_idle()?;
        // What does not fit can still be accepted with another one.
        if service.level != asked.theirs.level() {
            return Err(VipReturn::InvalidReliabilityLevel);
        }
        let link = lock(&asked.link).take().ok_or(VipReturn::InvalidParameter)?;
        ASKED.remove(number);
        if !link.accept(attributes_of(&service)) {
            link.leave(&asked.nic.session);
            // Who has asked has gone meanwhile.
            return Err(VipReturn::Timeout);
        }
        if interface.connect(link) { Ok(()) } else { Err(VipReturn::InvalidState) }
    };
    status(accepted())
}

#[unsafe(no_mangle)]
extern "C" fn VipConnectReject(connection: Handle) -> VipReturn {
    let rejected = || {
        let number = number(Kind::Connection, connection)?;
        let asked = ASKED.remove(number)?;
        let link = lock(&asked.link).take()?;
        reject(&asked.nic, &link);
        Some(())
    };
    status(rejected().ok_or(VipReturn::InvalidParameter))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    local: *const VipNetAddress,
    remote: *const VipNetAddress,
    timeout: c_ulong,
    attributes: *mut VipViAttributes,
) -> VipReturn {
    let _ = local;
    let connected = || {
        let interface = interface_of(vi)?;
        // SAFETY: needed to read the argument.
        let (to, discriminator) = unsafe { read_address(remote) }?;
        let service = interface.service_if_idle()?;
        let session = &interface.nic.session;
        let to = (to.unwrap_or(session.node), discriminator);
        let deadline = Deadline::after(limit(timeout).map(Duration::from_millis));
        let link = meet::connect(session, to, attributes_of(&service), deadline)?;
        let theirs = link.memory.attributes(toe_abi::channel::Side::One);
        if interface.connect(link) { Ok(theirs) } else { Err(VipReturn::InvalidState) }
    };
    // SAFETY: needed to answer.
    status(connected().map(|theirs| unsafe { fill(attributes, vi_attributes(theirs)) }))
}

#[unsafe(no_mangle)]
extern "C" fn VipDisconnect(vi: Handle) -> VipReturn {
    status(interface_of(vi).map(|interface| interface.disconnect()))
}

#[unsafe(no_mangle)]
extern "C" fn VipPostSend(vi: Handle, descriptor: *mut VipDescriptor, memory: u32) -> VipReturn {
    status(interface_of(vi).and_then(|found| found.post(descriptor as u64, memory, false)))
}

#[unsafe(no_mangle)]
extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut VipDescriptor, memory: u32) -> VipReturn {
    status(interface_of(vi).and_then(|found| found.post(descriptor as u64, memory, true)))
}

/// # Safety
/// `to` is NULL or can be written to.
unsafe fn finished(found: Result<Option<(u64, bool)>, VipReturn>, to: *mut *mut VipDescriptor) -> VipReturn {
    match found {
        Ok(Some((at, is_wrong))) => {
            // SAFETY: needed to answer.
            unsafe { fill(to, at as *mut VipDescriptor) };
            if is_wrong { VipReturn::DescriptorError } else { VipReturn::Success }
        }
        Ok(None) => VipReturn::NotDone,
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendDone(vi: Handle, to: *mut *mut VipDescriptor) -> VipReturn {
    // SAFETY: the caller's promise.
    unsafe { finished(interface_of(vi).map(|found| found.done(false)), to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvDone(vi: Handle, to: *mut *mut VipDescriptor) -> VipReturn {
    // SAFETY: the caller's promise.
    unsafe { finished(interface_of(vi).map(|found| found.done(true)), to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendWait(vi: Handle, timeout: c_ulong, to: *mut *mut VipDescriptor) -> VipReturn {
    let waited = interface_of(vi).and_then(|found| found.wait(false, limit(timeout)));
    // SAFETY: the caller's promise.
    unsafe { finished(waited.map(Some), to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvWait(vi: Handle, timeout: c_ulong, to: *mut *mut VipDescriptor) -> VipReturn {
    let waited = interface_of(vi).and_then(|found| found.wait(true, limit(timeout)));
    // SAFETY: the caller's promise.
    unsafe { finished(waited.map(Some), to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateCQ(nic: Handle, entries: c_ulong, queue: *mut Handle) -> VipReturn {
    let created = || {
        let nic = nic_of(nic)?;
        let max = usize::try_from(entries).ok().filter(|max| (1..=CQ_ENTRIES_MAX).contains(max));
        let made = CompletionQueue::new(nic, max.ok_or(VipReturn::InvalidParameter)?);
        QUEUES.add(Arc::new(made)).ok_or(VipReturn::ErrorResource)
    };
    // SAFETY: needed to answer.
    status(created().map(|number| unsafe { fill(queue, handle(Kind::Queue, number)) }))
}

#[unsafe(no_mangle)]
extern "C" fn VipDestroyCQ(queue: Handle) -> VipReturn {
    status(queue_of(queue).and_then(|found| {
        if found.is_in_use() {
            return Err(VipReturn::ErrorResource);
        }
        number(Kind::Queue, queue)
            .map(|number| drop(QUEUES.remove(number)))
            .ok_or(VipReturn::InvalidParameter)
    }))
}

/// # Safety
/// Both are NULL or can be written to.
unsafe fn completed(found: Option<(i32, bool)>, vi: *mut Handle, of_receives: *mut c_int) -> VipReturn {
    let Some((number, is_of_receives)) = found else { return VipReturn::NotDone };
    // SAFETY: needed to answer.
    unsafe {
        fill(vi, vi_handle(number));
        fill(of_receives, is_of_receives.into());
    }
    VipReturn::Success
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQDone(queue: Handle, vi: *mut Handle, of_receives: *mut c_int) -> VipReturn {
    match queue_of(queue) {
        // SAFETY: the caller's promise.
        Ok(queue) => unsafe { completed(queue.done(), vi, of_receives) },
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQWait(
    queue: Handle,
    timeout: c_ulong,
    vi: *mut Handle,
    of_receives: *mut c_int,
) -> VipReturn {
    match queue_of(queue).and_then(|queue| queue.wait(limit(timeout))) {
        // SAFETY: the caller's promise.
        Ok(found) => unsafe { completed(Some(found), vi, of_receives) },
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn VipNSInit(nic: Handle, _info: Handle) -> VipReturn {
    status(nic_of(nic).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn VipNSShutdown(nic: Handle) -> VipReturn {
    status(nic_of(nic).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSGetHostByName(
    nic: Handle,
    name: *const c_char,
    address: *mut VipNetAddress,
    index: c_ulong,
) -> VipReturn {
    let found = || {
        let nic = nic_of(nic)?;
        if name.is_null() || address.is_null() {
            return Err(VipReturn::InvalidParameter);
        }
        // SAFETY: needed to read the name; that it is a string the caller has promised.
        let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
        let node = if bytes == b"localhost" { Some(nic.session.node) } else { NodeName::new(bytes) };
        // A node has one address, which is its name.
        node.filter(|_| index == 0).ok_or(VipReturn::ErrorNameservice)
    };
    // SAFETY: needed to answer.
    status(found().map(|node| unsafe { write_address(address, node, None) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSGetHostByAddr(
    nic: Handle,
    address: *const VipNetAddress,
    name: *mut c_char,
    len: *mut c_ulong,
) -> VipReturn {
    let found = || {
        nic_of(nic)?;
        // SAFETY: needed to read the arguments.
        let (node, room) = unsafe { (read_address(address)?.0, given(len.cast_const())?) };
        let node = node.ok_or(VipReturn::ErrorNameservice)?;
        let bytes = node.as_bytes();
        // SAFETY: needed to answer.
        unsafe { fill(len, bytes.len() as c_ulong + 1) };
        if name.is_null() || room <= bytes.len() as c_ulong {
            return Err(VipReturn::InvalidParameter);
        }
        // SAFETY: needed to answer; that there is so much room the caller has said.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len());
            name.add(bytes.len()).write(0);
        }
        Ok(())
    };
    status(found())
}
