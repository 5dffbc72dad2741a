//! Which sockets of a program go to which stack: what `toe run` read from `toe.toml`, on its way to the programs that it
//! starts, in the environment variable [`POLICY_VARIABLE`].
//!
//! The text is words of the form `name=value`, groups of them separated by `;`. The first group is the policy, each other
//! group a rule:
//!
//! | word | of | meaning |
//! |---|---|---|
//! | `engines=0+1,2` | policy | engines by their place in `TOE_ENGINE`, those of the highest priority first; `+`: the same priority |
//! | `balance=hash` | policy | which of several of the same priority: `hash` or `least-loaded` |
//! | `stack=kernel` | both | an [`Action`]; of the policy: where no rule matches |
//! | `program=nginx` | rule | the file name of the program |
//! | `call=listen` | rule | `connect` or `listen` |
//! | `port=80,8000-8100` | rule | the port listened at or connected to |
//! | `address=10.0.0.0/8,fd00::/8` | rule | the address listened at or connected to |
//! | `engines=1` | rule | only these |
//!
//! What a rule leaves out matches everything. The first rule that matches decides.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use toe_base::{Addr, Endpoint};

/// Carries a policy to the programs of `toe run`.
pub const POLICY_VARIABLE: &str = "TOE_POLICY";
/// Engines that one program can use.
pub const ENGINES_MAX: usize = 4;
/// Rules that a policy can have: `toe why` names one by its number.
pub const RULES_MAX: usize = 200;

/// Some of the engines of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engines(u8);

impl Engines {
    pub const ALL: Engines = Engines(u8::MAX);

    /// An index of [`ENGINES_MAX`] or more is none.
    #[must_use]
    pub fn with(self, index: usize) -> Engines {
        Engines(
            self.0 | u8::try_from(index).ok().and_then(|index| 1u8.checked_shl(index.into())).unwrap_or(0),
        )
    }

    pub fn has(self, index: usize) -> bool {
        Engines::default().with(index).0 & self.0 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..ENGINES_MAX).filter(move |index| self.has(*index))
    }

    #[must_use]
    pub fn and(self, other: Engines) -> Engines {
        Engines(self.0 & other.0)
    }
}

/// What becomes of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// An engine, and the kernel where no engine takes it.
    #[default]
    Offload,
    /// An engine or nobody.
    EngineOnly,
    /// The kernel.
    Kernel,
    /// The call fails with EACCES.
    Refuse,
}

impl Action {
    pub const ALL: [Action; 4] = [Action::Offload, Action::EngineOnly, Action::Kernel, Action::Refuse];

    pub const fn name(self) -> &'static str {
        match self {
            Action::Offload => "offload",
            Action::EngineOnly => "engine-only",
            Action::Kernel => "kernel",
            Action::Refuse => "refuse",
        }
    }
}

/// How one of several engines of the same priority is chosen for a connection. Listeners are on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// By the peer's address and port: the same peer, the same engine.
    #[default]
    Hash,
    /// The one that is least busy, and of such the one with fewest connections.
    LeastLoaded,
}

impl Balance {
    pub const ALL: [Balance; 2] = [Balance::Hash, Balance::LeastLoaded];

    pub const fn name(self) -> &'static str {
        match self {
            Balance::Hash => "hash",
            Balance::LeastLoaded => "least-loaded",
        }
    }
}

/// The moment at which a socket's stack is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Connect,
    Listen,
}

impl Call {
    pub const ALL: [Call; 2] = [Call::Connect, Call::Listen];

    pub const fn name(self) -> &'static str {
        match self {
            Call::Connect => "connect",
            Call::Listen => "listen",
        }
    }
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    addr: Addr,
    prefix_len: u8,
}

impl Network {
    fn contains(&self, addr: Addr) -> bool {
        let same_family = addr.is_v4() == self.addr.is_v4();
        same_family && addr.network(self.prefix_len) == self.addr.network(self.prefix_len)
    }

    /// Whether a socket at `addr` is one that a rule for this network is about. One that listens at the unspecified address
    /// of IPv6 may be at that of IPv4, too.
    fn concerns(&self, addr: Addr) -> bool {
        self.contains(addr) || addr == Addr::UNSPECIFIED_V6 && self.contains(Addr::UNSPECIFIED_V4)
    }
}

/// One rule. What is empty matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub program: Option<String>,
    pub call: Option<Call>,
    pub ports: Vec<PortRange>,
    pub networks: Vec<Network>,
    pub action: Action,
    pub engines: Engines,
}

impl Rule {
    /// One that matches everything.
    pub fn new(action: Action) -> Rule {
        Rule {
            program: None,
            call: None,
            ports: Vec::new(),
            networks: Vec::new(),
            action,
            engines: Engines::ALL,
        }
    }

    fn matches(&self, program: &str, call: Call, addr: Endpoint) -> bool {
        let port = |range: &PortRange| (range.first..=range.last).contains(&addr.port);
        let network = |network: &Network| network.concerns(addr.addr);
        self.program.as_deref().is_none_or(|wanted| wanted == program)
            && self.call.is_none_or(|wanted| wanted == call)
            && (self.ports.is_empty() || self.ports.iter().any(port))
            && (self.networks.is_empty() || self.networks.iter().any(network))
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// By priority, the highest first. Empty: the engines in their order, each of a priority of its own.
    pub priorities: Vec<Engines>,
    pub balance: Balance,
    pub otherwise: Action,
    pub rules: Vec<Rule>,
}

/// What a policy says of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Action,
    pub engines: Engines,
    /// The rule that decided, from 1 on; 0: none did.
    pub rule: u8,
}

impl Policy {
    /// `addr`: where a socket is to listen, or what it is to connect to.
    pub fn decide(&self, program: &str, call: Call, addr: Endpoint) -> Decision {
        match self.rules.iter().zip(1u8..).find(|(rule, _)| rule.matches(program, call, addr)) {
            Some((rule, number)) => Decision { action: rule.action, engines: rule.engines, rule: number },
            None => Decision { action: self.otherwise, engines: Engines::ALL, rule: 0 },
        }
    }
}

/// What is wrong with a policy: the word, and what could stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPolicy {
    pub word: String,
    pub wanted: &'static str,
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {}", self.word, self.wanted)
    }
}

fn bad<T>(word: &str, wanted: &'static str) -> Result<T, BadPolicy> {
    Err(BadPolicy { word: word.to_owned(), wanted })
}

impl FromStr for Action {
    type Err = BadPolicy;

    fn from_str(word: &str) -> Result<Action, BadPolicy> {
        let wanted = "stack; give offload, engine-only, kernel or refuse";
        Action::ALL.into_iter().find(|one| one.name() == word).map_or_else(|| bad(word, wanted), Ok)
    }
}

impl FromStr for Balance {
    type Err = BadPolicy;

    fn from_str(word: &str) -> Result<Balance, BadPolicy> {
        let wanted = "way to balance; give hash or least-loaded";
        Balance::ALL.into_iter().find(|one| one.name() == word).map_or_else(|| bad(word, wanted), Ok)
    }
}

impl FromStr for Call {
    type Err = BadPolicy;

    fn from_str(word: &str) -> Result<Call, BadPolicy> {
        let wanted = "call that decides; give connect or listen";
        Call::ALL.into_iter().find(|one| one.name() == word).map_or_else(|| bad(word, wanted), Ok)
    }
}

impl FromStr for PortRange {
    type Err = BadPolicy;

    fn from_str(word: &str) -> Result<PortRange, BadPolicy> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(PortRange { first, last }),
            _ => bad(word, "port; give one as 80 or a range as 8000-8100"),
        }
    }
}

impl FromStr for Network {
    type Err = BadPolicy;

    fn from_str(word: &str) -> Result<Network, BadPolicy> {
        let wanted = "IP address or network; give one as 10.0.0.2, 10.0.0.0/8 or fd00::/8";
        let (addr, prefix_len) = word.split_once('/').map_or((word, None), |(addr, len)| (addr, Some(len)));
        let Ok(addr) = addr.trim().parse::<IpAddr>() else { return bad(word, wanted) };
        let addr = Addr::from(addr);
        match prefix_len.map_or(Ok(addr.bits()), |len| len.trim().parse()) {
            Ok(prefix_len) if prefix_len <= addr.bits() => Ok(Network { addr, prefix_len }),
            _ => bad(word, wanted),
        }
    }
}

/// The elements of a list, as both `toe.toml` and the policy's own text have it.
pub fn parse_list<T: FromStr<Err = BadPolicy>>(list: &str) -> Result<Vec<T>, BadPolicy> {
    list.split(',').map(|word| word.trim().parse()).collect()
}

/// Whether a rule can name this program: it is a file name, and has no character that the text uses.
pub fn is_program_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, ';' | '/'))
}

fn parse_engines(word: &str) -> Result<Engines, BadPolicy> {
    word.split('+').try_fold(Engines::default(), |engines, index| match index.parse::<usize>() {
        Ok(index) if index < ENGINES_MAX => Ok(engines.with(index)),
        _ => bad(word, "list of engines"),
    })
}

impl FromStr for Policy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Policy, BadPolicy> {
        let mut groups = text.split(';');
        let mut policy = Policy::default();
        for word in groups.next().into_iter().flat_map(str::split_whitespace) {
            match word.split_once('=') {
                Some(("engines", list)) => {
                    policy.priorities = list.split(',').map(parse_engines).collect::<Result<_, _>>()?;
                }
                Some(("balance", value)) => policy.balance = value.parse()?,
                Some(("stack", value)) => policy.otherwise = value.parse()?,
                _ => return bad(word, "word of a policy"),
            }
        }
        policy.rules = groups.map(str::parse).collect::<Result<_, _>>()?;
        if policy.rules.len() > RULES_MAX { bad("", "policy: it has too many rules") } else { Ok(policy) }
    }
}

impl FromStr for Rule {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Rule, BadPolicy> {
        let mut rule = Rule::new(Action::default());
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("program", name)) => rule.program = Some(name.to_owned()),
                Some(("call", value)) => rule.call = Some(value.parse()?),
                Some(("port", list)) => rule.ports = parse_list(list)?,
                Some(("address", list)) => rule.networks = parse_list(list)?,
                Some(("engines", list)) => rule.engines = parse_engines(list)?,
                Some(("stack", value)) => rule.action = value.parse()?,
                _ => return bad(word, "word of a rule"),
            }
        }
        Ok(rule)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}

impl fmt::Display for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join(f, "+", self.iter())
    }
}

fn join<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    between: &str,
    parts: impl IntoIterator<Item = T>,
) -> fmt::Result {
    parts.into_iter().enumerate().try_for_each(|(n, part)| {
        f.write_str(if n == 0 { "" } else { between })?;
        part.fmt(f)
    })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stack={}", self.action.name())?;
        if let Some(program) = &self.program {
            write!(f, " program={program}")?;
        }
        if let Some(call) = self.call {
            write!(f, " call={}", call.name())?;
        }
        if !self.ports.is_empty() {
            f.write_str(" port=")?;
            join(f, ",", &self.ports)?;
        }
        if !self.networks.is_empty() {
            f.write_str(" address=")?;
            join(f, ",", &self.networks)?;
        }
        if self.engines != Engines::ALL { write!(f, " engines={}", self.engines) } else { Ok(()) }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "balance={} stack={}", self.balance.name(), self.otherwise.name())?;
        if !self.priorities.is_empty() {
            f.write_str(" engines=")?;
            join(f, ",", &self.priorities)?;
        }
        self.rules.iter().try_for_each(|rule| write!(f, ";{rule}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(text: &str) -> Endpoint {
        text.parse::<core::net::SocketAddr>().expect("an address").into()
    }

    const TEXT: &str = "balance=least-loaded stack=offload engines=0+2,1;\
        stack=kernel program=sshd;\
        stack=refuse call=connect port=25;\
        stack=engine-only port=80,8000-8100 address=10.0.0.0/8,127.0.0.1/32,fd00::/8 engines=1";

    #[test]
    fn a_policy_comes_back_as_it_was_written() {
        let policy: Policy = TEXT.parse().expect("a policy");
        assert_eq!(policy.to_string(), TEXT);
        assert_eq!("".parse(), Ok(Policy::default()));
        assert_eq!(Policy::default().to_string().parse(), Ok(Policy::default()));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy: Policy = TEXT.parse().expect("a policy");
        let decide = |program, call, addr| policy.decide(program, call, to(addr));
        let of = |decision: Decision| (decision.action, decision.rule);
        assert_eq!(of(decide("sshd", Call::Listen, "0.0.0.0:22")), (Action::Kernel, 1));
        assert_eq!(of(decide("exim4", Call::Connect, "10.0.0.1:25")), (Action::Refuse, 2));
        assert_eq!(of(decide("exim4", Call::Listen, "0.0.0.0:25")), (Action::Offload, 0));
        let web = decide("nginx", Call::Listen, "10.1.2.3:8080");
        assert_eq!(of(web), (Action::EngineOnly, 3));
        assert_eq!(web.engines.iter().collect::<Vec<_>>(), [1]);
        assert_eq!(of(decide("nginx", Call::Listen, "11.1.2.3:8080")), (Action::Offload, 0));
        assert_eq!(of(decide("nginx", Call::Listen, "[fd12::3]:8080")), (Action::EngineOnly, 3));
        assert_eq!(of(decide("nginx", Call::Listen, "[2001:db8::3]:8080")), (Action::Offload, 0));
        assert_eq!(of(decide("nginx", Call::Listen, "[::ffff:10.1.2.3]:8080")), (Action::EngineOnly, 3));
        assert_eq!(of(decide("nginx", Call::Listen, "10.1.2.3:8101")), (Action::Offload, 0));
    }

    #[test]
    fn a_rule_for_all_of_a_family_is_about_who_listens_at_all_of_it() {
        let policy: Policy = ";stack=kernel call=listen address=0.0.0.0/0".parse().expect("a policy");
        let decide = |addr| policy.decide("any", Call::Listen, to(addr)).action;
        assert_eq!(decide("0.0.0.0:80"), Action::Kernel);
        assert_eq!(decide("[::]:80"), Action::Kernel, "it may listen at all of IPv4, too");
        assert_eq!(decide("[::1]:80"), Action::Offload);
        let policy: Policy = ";stack=kernel address=::/0".parse().expect("a policy");
        assert_eq!(policy.decide("any", Call::Connect, to("[fd00::1]:80")).action, Action::Kernel);
        assert_eq!(policy.decide("any", Call::Connect, to("10.0.0.1:80")).action, Action::Offload);
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (text, word) in [
            ("stack=fast", "fast"),
            (";port=80-79", "80-79"),
            (";address=10.0.0.0/33", "10.0.0.0/33"),
            (";address=fd00::/129", "fd00::/129"),
            (";engines=4", "4"),
            ("speed=1", "speed=1"),
        ] {
            let error = text.parse::<Policy>().expect_err(text);
            assert_eq!(error.word, word);
        }
        assert!(!is_program_name("a\tb") && !is_program_name("a\u{a0}b"));
        assert!(!is_program_name("a b") && !is_program_name("/bin/sh") && is_program_name("nginx"));
    }
}
