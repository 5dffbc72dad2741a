//! The register map of a queue set. Each side writes only its own block; the blocks are 2 KiB apart, so that neither
//! side's stores disturb the other's lines.
//!
//! All registers are 32-bit little-endian words, read and written whole.

/// Offsets (in bytes, from the block's start) of the registers that the *engine* writes.
#[derive(Clone, Copy, Debug)]
pub struct EngineRegisters;

impl EngineRegisters {
    /// Entries of `cmd` that the engine has taken, free-running. The host reads it only when its copy says "full".
    pub const CMD_HEAD: u64 = 0;
    pub const SND_HEAD: u64 = 64;
    pub const RCV_HEAD: u64 = 128;
}

/// Offsets (from the block's start) of the registers that the *host* writes. The engine validates each value that
/// it reads here and never treats one as its own index.
#[derive(Clone, Copy, Debug)]
pub struct HostRegisters;

impl HostRegisters {
    /// Entries of `cpl` that the host has taken, free-running.
    pub const CPL_HEAD: u64 = 0;
    /// Non-zero when the host is about to sleep and wants an interrupt. The engine clears it as it interrupts.
    pub const IRQ_ARMED: u64 = 64;
    /// An [`IrqMode`] number.
    pub const IRQ_MODE: u64 = 68;
    /// N of [`IrqMode::EveryN`].
    pub const IRQ_COUNT: u64 = 72;
    /// With modes `EveryN` and `OnFull`: interrupt no later than this many µs after the first waiting completion.
    pub const IRQ_AFTER_US: u64 = 76;
}

/// When an armed queue set is interrupted (TSSL paper section 4.3: on full, on each completion, on every N).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IrqMode {
    /// As soon as a completion is there. The default.
    #[default]
    Each,
    /// After `IRQ_COUNT` completions, or `IRQ_AFTER_US` after the first.
    EveryN,
    /// When the queue is full, or `IRQ_AFTER_US` after the first completion.
    OnFull,
}

impl IrqMode {
    pub const fn to_raw(self) -> u32 {
        match self {
            IrqMode::Each => 0,
            IrqMode::EveryN => 1,
            IrqMode::OnFull => 2,
        }
    }

    /// `None` for a number that names no mode.
    pub const fn from_raw(raw: u32) -> Option<IrqMode> {
        match raw {
            0 => Some(IrqMode::Each),
            1 => Some(IrqMode::EveryN),
            2 => Some(IrqMode::OnFull),
            _ => None,
        }
    }
}
