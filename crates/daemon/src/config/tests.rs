//! What the command line and `toe.toml` may say, and what they may not.

use super::*;
use crate::policy::Allowed;
use std::net::{IpAddr, Ipv4Addr};
use toe_engine::{AlgorithmName, EcnMode, FastOpenMode, SynCookies};

fn from_flags(line: &str) -> Result<Config, ConfigError> {
    let matches = Flags::command().try_get_matches_from(line.split_whitespace()).expect("flags exist");
    Config::from_matches(&matches)
}

fn from_file(text: &str) -> Result<Config, ConfigError> {
    let source = Source { path: Path::new("toe.toml"), text };
    Config::merge(Flags::default(), Vec::new(), Some(source))
}

fn message(result: Result<Config, ConfigError>) -> String {
    result.expect_err("an error").to_string()
}

#[test]
fn an_address_belongs_to_the_port_before_it() {
    let config = from_flags(
        "toed --port packet:veth0 --addr 10.0.0.2/24 --addr 10.1.0.2/16 --gateway 10.0.0.1 \
         --port tap:tap0 --addr 192.168.7.2/30 --port local",
    )
    .expect("good");
    assert!(config.local);
    assert_eq!(config.ports.len(), 2);
    let addrs = |i: usize| config.ports[i].addrs.iter().map(Cidr::to_string).collect::<Vec<_>>();
    assert_eq!(addrs(0), ["10.0.0.2/24", "10.1.0.2/16"]);
    assert_eq!(addrs(1), ["192.168.7.2/30"]);
    assert_eq!(config.ports[0].gateways, [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))]);
    assert!(config.ports[1].gateways.is_empty());
}

#[test]
fn a_port_may_have_addresses_and_a_gateway_of_each_family() {
    let both = ["10.0.0.1", "fe80::1"].map(|text| text.parse::<IpAddr>().expect("an address"));
    let flags =
        "toed --port tap:t0 --addr 10.0.0.2/24 --addr fd00::2/64 --gateway 10.0.0.1 --gateway fe80::1";
    let file = "[[ports]]\nport = \"tap:t0\"\naddr = [\"10.0.0.2/24\", \"fd00::2/64\"]\n\
                gateway = \"10.0.0.1\"\ngateway6 = \"fe80::1\"\n";
    for config in [from_flags(flags).expect("good"), from_file(file).expect("good")] {
        assert_eq!(config.ports[0].gateways, both);
        assert_eq!(config.ports[0].addrs[1].to_string(), "fd00::2/64");
    }
}

#[test]
fn without_a_link_the_local_port_is_there() {
    let config = from_flags("toed").expect("good");
    assert!(config.local && config.ports.is_empty());
    assert_eq!(config.name, "default");
    assert_eq!((config.session.receive_len, config.session.send_len), (256 << 20, 256 << 20));
    assert!(!from_flags("toed --port packet:v0 --addr 10.0.0.2/24").expect("good").local);
}

#[test]
fn a_shared_port_has_the_kernels_addresses() {
    let config = from_flags("toed --port xdp:eth1 --port packet:v0 --addr 10.0.0.2/24").expect("good");
    assert!(config.ports[0].addrs.is_empty() && config.ports[0].spec.driver.shares_address());
}

#[test]
fn the_way_past_the_engine_can_be_closed_by_either() {
    assert!(from_flags("toed").expect("good").direct);
    assert!(!from_flags("toed --no-direct").expect("good").direct);
    assert!(!from_file("direct = false\n").expect("good").direct);
}

#[test]
fn errors_on_the_command_line_say_what_to_do() {
    for (line, wanted) in [
        ("toed --addr 10.0.0.2/24", "put it after the --port"),
        ("toed --port packet:v0", "has no address"),
        ("toed --port packet:v0 --addr 10.0.0.2", "write it as 10.0.0.2/24"),
        ("toed --port packet:v0 --addr 10.0.0.2/33", "longer than 32"),
        ("toed --port packet:v0 --addr 127.0.0.2/8", "cannot be"),
        ("toed --port packet:v0 --addr fd00::2/129", "longer than 128"),
        ("toed --port packet:v0 --addr ::ffff:10.0.0.2/24", "cannot be"),
        ("toed --port packet:v0 --addr fd00::2", "write it as"),
        ("toed --port packet:v0 --addr 10.0.0.2/24 --gateway fe80::1", "in no network"),
        ("toed --port packet:v0 --addr fd00::2/64 --gateway fd00::1 --gateway fe80::1", "already"),
        ("toed --port packet:v0 --addr 10.0.0.2/24 --gateway 10.0.1.1", "in no network"),
        ("toed --port packet:v0 --addr 10.0.0.2/24 --port packet:v0 --addr 10.0.0.3/24", "given twice"),
        ("toed --port packet:v0 --addr 10.0.0.2/24 --port xdp:v0", "leave one of them out"),
        ("toed --port local --addr 10.0.0.2/24", "takes no address"),
        ("toed --port xdp:v0 --addr 10.0.0.2/24", "leave 10.0.0.2/24 out"),
        ("toed --port xdp:v0 --gateway 10.0.0.1", "leave 10.0.0.1 out"),
        ("toed --name a/b", "cannot be a name"),
        ("toed --spin-us 999999999", "out of range"),
        ("toed --congestion vegas", "give one of reno, cubic, dctcp, bbr"),
        ("toed --ecn always", "give one of off, passive, on"),
        ("toed --fast-open on", "give one of off, client, server, both"),
        ("toed --syn-cookies 2", "give one of off, on, always"),
        ("toed --allow-uid no-such-user", "--allow-uid: no user is called"),
        ("toed --allow-group no-such-group", "--allow-group: no group is called"),
        ("toed --user no-such-user", "--user: no user is called"),
        ("toed --seccomp maybe", "give one of errno, strict, audit, off"),
        ("toed --cores 3-1", "runs backwards; write the cores as taskset does"),
    ] {
        let text = message(from_flags(line));
        assert!(text.contains(wanted), "{line}: {text}");
    }
}

#[test]
fn a_file_says_the_same_as_flags() {
    let config = from_file(
        "name = \"web\"\nlocal = true\nspin_us = 5\ncores = \"0-2\"\nallow_uids = [33]\nreceive_memory_mib = 64\n\
         log = \"debug\"\nlog_format = \"json\"\n\n[[ports]]\nport = \"packet:veth0?drop=1%\"\n\
         addr = [\"10.0.0.2/24\"]\ngateway = \"10.0.0.1\"\n",
    )
    .expect("good");
    assert_eq!((config.name.as_str(), config.spin_us, config.local), ("web", 5, true));
    assert_eq!(config.cores.map(|cores| cores.to_string()).as_deref(), Some("0,1,2"));
    assert_eq!(config.users.allowed, Allowed { uids: vec![33], ..Allowed::default() });
    assert_eq!(config.session.receive_len, 64 << 20);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.ports.len(), 1);
}

#[test]
fn errors_in_a_file_name_the_line() {
    for (text, line, wanted) in [
        ("name = \"web\"\nspinn_us = 3\n", 2, "spinn_us"),
        ("name = \"web\"\n\nspin_us = \"x\"\n", 3, "invalid type"),
        ("\nname = \"a b\"\n", 2, "cannot be a name"),
        (
            "[[ports]]\nport = \"packet:v0\"\naddr = [\n  \"10.0.0.2/24\",\n  \"10.0.0/24\",\n]\n",
            5,
            "no IP address",
        ),
        ("[[ports]]\nport = \"carrier-pigeon:v0\"\naddr = [\"10.0.0.2/24\"]\n", 2, "carrier-pigeon"),
        ("receive_memory_mib = 1\n", 1, "out of range"),
        ("\nallow_uids = [\"no-such-user\"]\n", 2, "no user is called"),
        ("\nuser = \"no-such-user\"\n", 2, "no user is called"),
        ("= 3\n", 1, ""),
    ] {
        let text_of_error = message(from_file(text));
        assert!(text_of_error.starts_with(&format!("toe.toml:{line}: ")), "{text:?}: {text_of_error}");
        assert!(text_of_error.contains(wanted), "{text:?}: {text_of_error}");
    }
}

#[test]
fn the_command_line_wins() {
    let source = Source {
        path: Path::new("toe.toml"),
        text: "name = \"file\"\n[[ports]]\nport = \"packet:a\"\naddr = [\"10.0.0.2/24\"]\n",
    };
    let matches = Flags::command()
        .try_get_matches_from(["toed", "--name", "flag", "--port", "packet:b", "--addr", "10.1.0.2/24"])
        .expect("flags exist");
    let flags = Flags::from_arg_matches(&matches).expect("flags");
    let ports = pair_ports(&matches).expect("pairs");
    let config = Config::merge(flags, ports, Some(source)).expect("good");
    assert_eq!(config.name, "flag");
    assert_eq!(config.ports.len(), 1);
    assert_eq!(config.ports[0].spec.interface, "b");
}

#[test]
fn a_missing_file_is_named() {
    let text = message(from_flags("toed --config /nonexistent/toe.toml"));
    assert!(text.starts_with("/nonexistent/toe.toml: cannot read it"), "{text}");
}

#[test]
fn congestion_control_and_ecn_are_given_by_either() {
    let config = from_file("[tcp]\ncongestion = \"bbr\"\necn = \"on\"\n").expect("good");
    assert_eq!((config.tcp.congestion, config.tcp.ecn), (AlgorithmName::Bbr, EcnMode::Request));
    let config = from_flags("toed --congestion dctcp --ecn off").expect("good");
    assert_eq!((config.tcp.congestion, config.tcp.ecn), (AlgorithmName::Dctcp, EcnMode::Off));
    let config = from_flags("toed").expect("good");
    assert_eq!((config.tcp.congestion, config.tcp.ecn), (AlgorithmName::Cubic, EcnMode::Accept));
    let text = message(from_file("\n[tcp]\ncongestion = \"newvegas\"\n"));
    assert!(text.starts_with("toe.toml:3: ") && text.contains("reno, cubic, dctcp, bbr"), "{text}");
    let text = message(from_file("[tcp]\nconjestion = \"reno\"\n"));
    assert!(text.starts_with("toe.toml:2: ") && text.contains("conjestion"), "{text}");
}

#[test]
fn rfc1337_is_given_by_either() {
    assert!(!from_flags("toed").expect("good").tcp.rfc1337, "as Linux has it");
    assert!(from_file("[tcp]\nrfc1337 = \"on\"\n").expect("good").tcp.rfc1337);
    assert!(from_flags("toed --rfc1337 on").expect("good").tcp.rfc1337);
    assert!(!from_flags("toed --rfc1337 off").expect("good").tcp.rfc1337);
    let text = message(from_file("[tcp]\nrfc1337 = \"1\"\n"));
    assert!(text.starts_with("toe.toml:2: ") && text.contains("one of off, on"), "{text}");
}

#[test]
fn fast_open_and_syn_cookies_are_given_by_either() {
    let config = from_flags("toed").expect("good");
    assert_eq!((config.tcp.fast_open, config.tcp.syn_cookies), (FastOpenMode::Client, SynCookies::Overflow));
    let config = from_file("[tcp]\nfast_open = \"both\"\nsyn_cookies = \"off\"\n").expect("good");
    assert_eq!((config.tcp.fast_open, config.tcp.syn_cookies), (FastOpenMode::Both, SynCookies::Off));
    let config = from_flags("toed --fast-open server --syn-cookies always").expect("good");
    assert_eq!((config.tcp.fast_open, config.tcp.syn_cookies), (FastOpenMode::Server, SynCookies::Always));
}

#[test]
fn nobody_but_the_starter_may_attach_unless_said() {
    assert_eq!(from_flags("toed").expect("good").users.allowed, Allowed::default());
    let config =
        from_flags("toed --allow-uid 33 --allow-uid root --allow-group 7 --allow-all").expect("good");
    assert_eq!(config.users.allowed, Allowed { all: true, uids: vec![33, 0], gids: vec![7] });
    let config = from_file("allow_groups = [7, \"root\"]\nallow_all = true\n").expect("good");
    assert_eq!(config.users.allowed, Allowed { all: true, uids: vec![], gids: vec![7, 0] });
}

#[test]
fn an_engine_runs_as_a_user_of_its_own() {
    let user = from_flags("toed").expect("good").users.user;
    assert!(user.is_default && user.uid != 0 && user.gid != 0, "{user:?}");
    let root = RunAs { uid: 0, gid: 0, is_default: false };
    assert_eq!(from_flags("toed --user root").expect("good").users.user, root);
    assert_eq!(
        from_file("user = 4242\n").expect("good").users.user,
        RunAs { uid: 4242, gid: 4242, is_default: false }
    );
    assert_eq!(from_file("seccomp = \"audit\"\n").expect("good").users.seccomp, SeccompMode::Audit);
}
