//! A whole queue set, host's side to engine's side and back, in memory mapped twice.

use crate::moderation::IrqSettings;
use crate::queue_set::{EngineQueueSet, HostQueueSet};
use crate::region::{OutOfRange, Region};
use toe_abi::command::{ConnectArgs, ListenArgs, WireAddr};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::region::{CMD_ENTRIES, CPL_ENTRIES, RegionLayout, SND_ENTRIES};
use toe_abi::register::IrqMode;
use toe_base::{FlowId, Instant};
use zerocopy::IntoBytes;

const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 2, flows: 8, receive_len: 1 << 16, send_len: 1 << 16 };
const FLOW: FlowId = FlowId::new(3, 1);

fn pair(index: u8) -> (HostQueueSet, EngineQueueSet) {
    let (region, files) = Region::create_for(&LAYOUT, 1).unwrap();
    let host_region = Region::map_for(&LAYOUT, files).unwrap();
    let (sender, receiver) = super::interrupt();
    let engine = EngineQueueSet::new(&region, &LAYOUT, index, sender).unwrap();
    let host = HostQueueSet::new(&host_region, &LAYOUT, index, receiver).unwrap();
    (host, engine)
}

#[test]
fn argument_blocks_travel_with_their_commands_over_many_laps() {
    let (mut host, mut engine) = pair(1);
    for n in 0..CMD_ENTRIES * 5 {
        let address = WireAddr { family: 4, port: n as u16, addr: [n as u8; 16] };
        let listen = ListenArgs { local: address, backlog: n, ..ListenArgs::default() };
        let connect = ConnectArgs { remote: address, anchor: n, ..ConnectArgs::default() };
        host.push_listen(n, &listen).unwrap();
        host.push_command(Command::ShutdownSend { flow: FLOW }).unwrap();
        host.push_connect(n, &connect).unwrap();
        let mut next = || engine.pop_command().expect("waits").expect("well-formed");
        assert_eq!(next(), (Command::Listen { token: n }, listen.as_bytes().try_into().unwrap()));
        assert_eq!(next(), (Command::ShutdownSend { flow: FLOW }, [0; 64]));
        assert_eq!(next(), (Command::Connect { token: n }, connect.as_bytes().try_into().unwrap()));
        assert!(engine.pop_command().is_none());
        engine.publish_heads();
    }
}

#[test]
fn the_blocks_of_a_full_command_queue_are_left_alone() {
    let (mut host, mut engine) = pair(0);
    for n in 0..CMD_ENTRIES {
        host.push_listen(n, &ListenArgs { backlog: n, ..ListenArgs::default() }).unwrap();
    }
    assert!(host.push_listen(999, &ListenArgs { backlog: 999, ..ListenArgs::default() }).is_err());
    for n in 0..CMD_ENTRIES {
        let (_, args) = engine.pop_command().unwrap().unwrap();
        assert_eq!(args, ListenArgs { backlog: n, ..ListenArgs::default() }.as_bytes());
    }
}

#[test]
fn data_and_credit_and_completions_go_round() {
    let (mut host, mut engine) = pair(0);
    for n in 0..SND_ENTRIES {
        let send = Send {
            flow: FLOW,
            data: MemRange { offset: u64::from(n), len: 1 },
            more: n % 2 == 0,
            urgent: n % 3 == 0,
            end_of_record: n % 5 == 0,
        };
        host.push_send(send).unwrap();
        host.push_credit(ReceiveCredit { flow: FLOW, len: n }).unwrap();
    }
    assert_eq!(host.send_room(1), 0);
    assert!(engine.has_work());
    for n in 0..SND_ENTRIES {
        let send = engine.pop_any_send().unwrap().unwrap();
        assert_eq!((send.data.offset, send.more), (u64::from(n), n % 2 == 0));
        assert_eq!(engine.pop_credit().unwrap(), Ok(ReceiveCredit { flow: FLOW, len: n }));
    }
    assert!(!engine.has_work());
    engine.publish_heads();
    assert_eq!(host.send_room(1), SND_ENTRIES);

    let completion = |n: u32| Completion::Sent { flow: FLOW, len: n };
    for n in 0..CPL_ENTRIES {
        assert_eq!(engine.post(completion(n)), Ok(true));
    }
    assert_eq!(engine.post(completion(0)), Ok(false));
    assert_eq!(engine.can_post(), Ok(false));
    for n in 0..CPL_ENTRIES {
        assert_eq!(host.pop_completion(), Some(Ok(completion(n))));
    }
    assert!(!host.has_completion());
    assert!(host.publish_head() && !host.publish_head());
    assert_eq!(engine.post(Completion::Reset { flow: FLOW, errno: Errno::ECONNRESET }), Ok(true));
}

#[test]
fn an_armed_host_is_interrupted_once_and_an_awake_one_never() {
    let (mut host, mut engine) = pair(0);
    let now = Instant::from_millis(1);
    let post = |engine: &mut EngineQueueSet| {
        assert_eq!(engine.post(Completion::PeerClosed { flow: FLOW }), Ok(true))
    };
    post(&mut engine);
    assert_eq!(engine.notify(now), Ok(false), "not armed");
    host.irq().arm();
    assert!(host.has_completion(), "the second look");
    post(&mut engine);
    assert_eq!(engine.notify(now), Ok(true));
    post(&mut engine);
    assert_eq!(engine.notify(now), Ok(false), "armed for one");
    assert_eq!(host.irq().receiver().drain(), Ok(true));
    assert_eq!(host.irq().receiver().drain(), Ok(false));
    while host.pop_completion().is_some() {}
    host.irq().arm();
    assert_eq!(engine.notify(now), Ok(false), "nothing new");
    host.irq().disarm();
    post(&mut engine);
    assert_eq!(engine.notify(now), Ok(false));
}

#[test]
fn a_moderated_host_is_interrupted_by_count_or_by_time() {
    let (host, mut engine) = pair(0);
    host.irq().set(IrqSettings { mode: IrqMode::EveryN, count: 3, after_us: 200 });
    host.irq().arm();
    let post = |at: u64, engine: &mut EngineQueueSet| {
        assert_eq!(engine.post(Completion::PeerClosed { flow: FLOW }), Ok(true));
        engine.notify(Instant::from_micros(at))
    };
    assert_eq!(post(10, &mut engine), Ok(false));
    assert_eq!(post(20, &mut engine), Ok(false));
    assert_eq!(post(30, &mut engine), Ok(true));
    assert!(engine.irq_deadline().is_far_future());
    host.irq().arm();
    assert_eq!(post(40, &mut engine), Ok(false));
    assert_eq!(engine.irq_deadline(), Instant::from_micros(240));
    assert!(!engine.expire_irq(Instant::from_micros(239)));
    assert!(engine.expire_irq(Instant::from_micros(240)));
    assert!(!engine.expire_irq(Instant::from_micros(999)), "once");
    // A host that woke by itself is owed nothing.
    host.irq().arm();
    assert_eq!(post(300, &mut engine), Ok(false));
    host.irq().disarm();
    assert!(!engine.expire_irq(Instant::from_micros(500)));
    assert!(engine.irq_deadline().is_far_future());
}

#[test]
fn a_queue_set_that_the_region_lacks_is_refused() {
    let (region, _files) = Region::create_for(&LAYOUT, 1).unwrap();
    let make = |layout: &RegionLayout, index| {
        HostQueueSet::new(&region, layout, index, super::interrupt().1).map(|_| ())
    };
    assert_eq!(make(&LAYOUT, 1), Ok(()));
    assert_eq!(make(&LAYOUT, 2), Err(OutOfRange));
    assert_eq!(make(&RegionLayout { queue_sets: 200, ..LAYOUT }, 199), Err(OutOfRange), "beyond the memory");
}

/// Close of one connection, then bytes on another one: whoever has both is not to meet the bytes first.
#[test]
fn bytes_wait_for_the_commands_before_them_and_no_longer() {
    let (mut host, mut engine) = pair(0);
    let command = Command::ShutdownSend { flow: FLOW };
    let send = Send::new(FLOW, MemRange { offset: 0, len: 1 });
    // Numbers of commands go round at 2^16.
    for n in 0..70_000 {
        host.push_send(send).unwrap();
        host.push_command(command).unwrap();
        host.push_send(send).unwrap();
        assert_eq!(engine.commands(), 1, "{n}");
        assert!(engine.pop_send().is_some(), "{n}: it was published before the command");
        assert!(engine.pop_send().is_none() && engine.has_send(), "{n}: and this one after it");
        assert!(engine.pop_command().is_some());
        assert!(engine.pop_send().is_some(), "{n}");
        engine.publish_heads();
    }
    host.push_command(command).unwrap();
    host.push_send(send).unwrap();
    assert!(engine.pop_any_send().is_some(), "when it is wanted now");
}
