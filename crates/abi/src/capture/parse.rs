//! From the text of a filter to a [`Filter`], or to what is wrong with it and where.

use super::FILTER_LEN_MAX;
use super::filter::{DEPTH_MAX, Ends, Filter, Named};
use core::fmt;
use core::net::IpAddr;

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// A word that does not belong where it stands; with what could stand there.
    Unexpected {
        word: String,
        wanted: &'static str,
    },
    /// The text ends where more must come.
    Incomplete {
        wanted: &'static str,
    },
    TooLong,
    TooDeep,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Unexpected { word, wanted } => write!(f, "'{word}' where {wanted} is expected"),
            FilterError::Incomplete { wanted } => write!(f, "it ends where {wanted} is expected"),
            FilterError::TooLong => write!(f, "longer than {FILTER_LEN_MAX} bytes"),
            FilterError::TooDeep => write!(f, "nested more than {DEPTH_MAX} deep"),
        }
    }
}

impl core::error::Error for FilterError {}

const TERM: &str = "a term (host, net, port, portrange, tcp, udp, icmp, icmp6, arp, ip, ip6, pid, dropped)";
const JOIN: &str = "'and' or 'or'";
const ADDRESS: &str = "an address, such as 10.0.0.1 or 2001:db8::1";
const NETWORK: &str = "a network, such as 10.0.0.0/8 or 2001:db8::/32, with no bit set behind its length";
const PORT: &str = "a port number, 0 … 65535";
const RANGE: &str = "a range of ports, such as 8000-8080";
const PID: &str = "the number of a process";

impl Filter {
    /// Understands the text of a filter.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        if text.len() > FILTER_LEN_MAX as usize {
            return Err(FilterError::TooLong);
        }
        let mut parser = Parser { words: words(text), at: 0, depth: 0 };
        if parser.words.is_empty() {
            return Ok(Filter::All);
        }
        let filter = parser.joined()?;
        match parser.next() {
            Some(word) => Err(FilterError::Unexpected { word: word.to_owned(), wanted: JOIN }),
            None if filter.depth() > DEPTH_MAX => Err(FilterError::TooDeep),
            None => Ok(filter),
        }
    }
}

/// Words, and the signs that stand for words wherever they stand.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for mut chunk in text.split_whitespace() {
        while !chunk.is_empty() {
            let sign = ["&&", "||", "!", "(", ")"].into_iter().find(|sign| chunk.starts_with(sign));
            let len = sign.map_or_else(
                || chunk.find(['(', ')', '!', '&', '|']).filter(|&at| at > 0).unwrap_or(chunk.len()),
                str::len,
            );
            let (word, rest) = chunk.split_at(len);
            words.push(word);
            chunk = rest;
        }
    }
    words
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += 1;
        word
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(found);
        found
    }

    /// Terms joined from the left.
    fn joined(&mut self) -> Result<Filter, FilterError> {
        let mut filter = self.negated()?;
        loop {
            if self.take(&["and", "&&"]) {
                filter = Filter::And(Box::new(filter), Box::new(self.negated()?));
            } else if self.take(&["or", "||"]) {
                filter = Filter::Or(Box::new(filter), Box::new(self.negated()?));
            } else {
                return Ok(filter);
            }
        }
    }

    fn negated(&mut self) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(FilterError::TooDeep);
        }
        let filter = if self.take(&["not", "!"]) {
            Filter::Not(Box::new(self.negated()?))
        } else if self.take(&["("]) {
            let inner = self.joined()?;
            if !self.take(&[")"]) {
                return Err(self.wrong("')', 'and' or 'or'"));
            }
            inner
        } else {
            self.term()?
        };
        self.depth -= 1;
        Ok(filter)
    }

    fn term(&mut self) -> Result<Filter, FilterError> {
        let named = match self.peek() {
            Some("ip") => Named::Ip,
            Some("ip6") => Named::Ip6,
            Some("arp") => Named::Arp,
            Some("tcp") => Named::Tcp,
            Some("udp") => Named::Udp,
            Some("icmp") => Named::Icmp,
            Some("icmp6") => Named::Icmp6,
            Some("dropped") => {
                self.at += 1;
                return Ok(Filter::Dropped);
            }
            Some("pid") => {
                self.at += 1;
                return self.value(PID, |word| word.parse().ok().filter(|&pid| pid != 0).map(Filter::Pid));
            }
            _ => return self.ends(),
        };
        self.at += 1;
        let protocol = Filter::Protocol(named);
        match self.peek() {
            // `tcp port 80`, `ip host A`.
            Some("src" | "dst" | "host" | "net" | "port" | "portrange") => {
                Ok(Filter::And(Box::new(protocol), Box::new(self.ends()?)))
            }
            _ => Ok(protocol),
        }
    }

    /// A term about ends: `[src|dst] host|net|port|portrange VALUE`, or `src|dst ADDRESS`.
    fn ends(&mut self) -> Result<Filter, FilterError> {
        let ends = match self.peek() {
            Some("src") => Ends::Source,
            Some("dst") => Ends::Destination,
            _ => Ends::Either,
        };
        self.at += usize::from(ends != Ends::Either);
        if self.take(&["host"]) {
            self.value(ADDRESS, |word| host(ends, word))
        } else if self.take(&["net"]) {
            self.value(NETWORK, |word| net(ends, word))
        } else if self.take(&["port"]) {
            let port =
                |word: &str| word.parse().ok().map(|port| Filter::Ports { ends, first: port, last: port });
            self.value(PORT, port)
        } else if self.take(&["portrange"]) {
            self.value(RANGE, |word| range(ends, word))
        } else if ends != Ends::Either {
            self.value(ADDRESS, |word| host(ends, word))
        } else {
            Err(self.wrong(TERM))
        }
    }

    fn value(
        &mut self,
        wanted: &'static str,
        read: impl FnOnce(&str) -> Option<Filter>,
    ) -> Result<Filter, FilterError> {
        let filter = self.peek().and_then(read).ok_or_else(|| self.wrong(wanted))?;
        self.at += 1;
        Ok(filter)
    }

    /// What stands here is not what is wanted.
    fn wrong(&self, wanted: &'static str) -> FilterError {
        match self.peek() {
            Some(word) => FilterError::Unexpected { word: word.to_owned(), wanted },
            None => FilterError::Incomplete { wanted },
        }
    }
}

fn host(ends: Ends, word: &str) -> Option<Filter> {
    let addr: IpAddr = word.parse().ok()?;
    Some(Filter::Net { ends, addr, len: if addr.is_ipv4() { 32 } else { 128 } })
}

fn net(ends: Ends, word: &str) -> Option<Filter> {
    let (addr, len) = word.split_once('/')?;
    let (addr, len): (IpAddr, u8) = (addr.parse().ok()?, len.parse().ok()?);
    let behind = match addr {
        IpAddr::V4(addr) if len <= 32 => u32::from(addr).checked_shl(u32::from(len)).unwrap_or(0) != 0,
        IpAddr::V6(addr) if len <= 128 => u128::from(addr).checked_shl(u32::from(len)).unwrap_or(0) != 0,
        _ => return None,
    };
    (!behind).then_some(Filter::Net { ends, addr, len })
}

fn range(ends: Ends, word: &str) -> Option<Filter> {
    let (first, last) = word.split_once('-')?;
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(Filter::Ports { ends, first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Filter::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn errors_name_the_word_and_what_could_stand_there() {
        assert_eq!(error("host foo"), format!("'foo' where {ADDRESS} is expected"));
        assert_eq!(error("tcp and"), format!("it ends where {TERM} is expected"));
        assert_eq!(error("port 65536"), format!("'65536' where {PORT} is expected"));
        assert_eq!(error("portrange 9-8"), format!("'9-8' where {RANGE} is expected"));
        assert_eq!(error("net 10.1.2.3/8"), format!("'10.1.2.3/8' where {NETWORK} is expected"));
        assert_eq!(error("net 10.0.0.0/33"), format!("'10.0.0.0/33' where {NETWORK} is expected"));
        assert_eq!(error("tcp udp"), "'udp' where 'and' or 'or' is expected");
        assert_eq!(error("(tcp"), "it ends where ')', 'and' or 'or' is expected");
        assert_eq!(error("tcp)"), "')' where 'and' or 'or' is expected");
        assert_eq!(error("vlan 3"), format!("'vlan' where {TERM} is expected"));
        assert_eq!(error("pid 0"), format!("'0' where {PID} is expected"));
        assert_eq!(error("src"), format!("it ends where {ADDRESS} is expected"));
        assert_eq!(error("tcp & udp"), "'&' where 'and' or 'or' is expected");
    }

    #[test]
    fn a_filter_has_bounds() {
        assert_eq!(Filter::parse(&"tcp ".repeat(2000)), Err(FilterError::TooLong));
        assert_eq!(Filter::parse(&"(".repeat(1000)), Err(FilterError::TooDeep));
        assert_eq!(Filter::parse(&"! ".repeat(1000)), Err(FilterError::TooDeep));
        let chain = format!("tcp{}", " or tcp".repeat(300));
        assert_eq!(Filter::parse(&chain), Err(FilterError::TooDeep), "a look at it would go as deep");
        assert!(Filter::parse(&format!("{}tcp{}", "(".repeat(20), ")".repeat(20))).is_ok());
    }

    #[test]
    fn signs_need_no_blanks() {
        assert_eq!(Filter::parse("!(tcp||udp)&&port 5"), Filter::parse("not ( tcp or udp ) and port 5"));
    }
}
