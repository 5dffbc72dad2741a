//! What the configuration says of all connections, and the words that it says it with.

/// Gives an enum the words that the configuration spells it with.
macro_rules! spelled {
    ($name:ident: $($variant:ident = $word:literal),+) => {
        impl $name {
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// As the configuration spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }

            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.into_iter().find(|one| one.as_str() == name)
            }
        }
    };
}

/// A value more is a field here and in [`TcpConfig::DEFAULT`]; toed's `config/tcp.rs` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    pub congestion: AlgorithmName,
    pub ecn: EcnMode,
    pub fast_open: FastOpenMode,
    pub syn_cookies: SynCookies,
    /// A reset does not end TIME_WAIT (Linux: tcp_rfc1337).
    pub rfc1337: bool,
}

impl TcpConfig {
    /// Where nothing is said.
    pub const DEFAULT: TcpConfig = TcpConfig {
        congestion: AlgorithmName::Cubic,
        ecn: EcnMode::Accept,
        fast_open: FastOpenMode::Client,
        syn_cookies: SynCookies::Overflow,
        rfc1337: false,
    };
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig::DEFAULT
    }
}

/// Names of [congestion control algorithms](crate::congestion), as TCP_CONGESTION and the configuration spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
    Reno,
    Cubic,
    Dctcp,
    Bbr,
}

spelled!(AlgorithmName: Reno = "reno", Cubic = "cubic", Dctcp = "dctcp", Bbr = "bbr");

impl AlgorithmName {
    /// The number that the host interface gives it.
    pub fn number(self) -> u8 {
        toe_abi::congestion::number_of(self.as_str()).unwrap_or(0)
    }

    pub fn from_number(number: u32) -> Option<AlgorithmName> {
        Self::from_name(toe_abi::congestion::name_of(u8::try_from(number).ok()?)?)
    }
}

/// Whether connections use [ECN](crate::ecn) (Linux: tcp_ecn).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnMode {
    Off,
    /// When the peer asks.
    Accept,
    /// Ask, too.
    Request,
}

spelled!(EcnMode: Off = "off", Accept = "passive", Request = "on");

/// Who may use [Fast Open](crate::fast_open) (Linux: tcp_fastopen).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpenMode {
    Off,
    /// Programs that connect.
    Client,
    /// Listeners that ask for it.
    Server,
    Both,
}

spelled!(FastOpenMode: Off = "off", Client = "client", Server = "server", Both = "both");

impl FastOpenMode {
    pub const fn client(self) -> bool {
        matches!(self, FastOpenMode::Client | FastOpenMode::Both)
    }

    pub const fn server(self) -> bool {
        matches!(self, FastOpenMode::Server | FastOpenMode::Both)
    }
}

/// When a SYN is answered with a cookie and forgotten (Linux: tcp_syncookies).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: a SYN too many is dropped.
    Off,
    /// When its listener has no room.
    Overflow,
    Always,
}

spelled!(SynCookies: Off = "off", Overflow = "on", Always = "always");
