//! Load on QUIC by quinn, as it comes from the registry: a server that answers each stream with as many octets as that asks for, and a
//! client that asks for much once, or for little often. Prints one JSON object.
//!
//!     quic-load serve ADDR:PORT
//!     quic-load transfer ADDR:PORT OCTETS
//!     quic-load requests ADDR:PORT COUNT AT-ONCE

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TransportConfig, VarInt};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use std::error::Error;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What a stream may have under way; quinn's own is for a path of the Internet.
const WINDOW: u32 = 16 << 20;
/// Octets of an answer in one write.
const CHUNK: usize = 64 << 10;

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        .max_concurrent_bidi_streams(VarInt::from_u32(1000));
    Arc::new(transport)
}

fn octet(at: u64) -> u8 {
    (at % 251) as u8
}

async fn answer(mut send: SendStream, mut recv: RecvStream) -> Outcome<()> {
    let mut asked = [0; 8];
    recv.read_exact(&mut asked).await?;
    let total = u64::from_le_bytes(asked);
    // A pattern of 251 octets, so that each begins with the right one wherever it is cut.
    let pattern: Vec<u8> = (0..(CHUNK + 251) as u64).map(octet).collect();
    let mut at = 0;
    while at < total {
        let len = (total - at).min(CHUNK as u64) as usize;
        let from = (at % 251) as usize;
        send.write_all(&pattern[from..from + len]).await?;
        at += len as u64;
    }
    send.finish()?;
    Ok(())
}

async fn serve(at: SocketAddr) -> Outcome<()> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, at)?;
    println!("ready");
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            while let Ok((send, recv)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    if let Err(error) = answer(send, recv).await {
                        eprintln!("a stream: {error}");
                    }
                });
            }
        });
    }
    Ok(())
}

/// Who the server is does not matter here.
#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

async fn connect(to: SocketAddr) -> Outcome<(Endpoint, Connection)> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let crypto = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
    config.transport_config(transport());
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut endpoint = Endpoint::client(SocketAddr::new(any, 0))?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(to, "localhost")?.await?;
    Ok((endpoint, connection))
}

async fn ask(connection: &Connection, octets: u64) -> Outcome<()> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&octets.to_le_bytes()).await?;
    send.finish()?;
    let mut at = 0;
    while let Some(chunk) = recv.read_chunk(usize::MAX, true).await? {
        let (first, last) = (chunk.bytes.first(), chunk.bytes.last());
        let end = at + chunk.bytes.len() as u64;
        if first != Some(&octet(at)) || last != Some(&octet(end - 1)) {
            return Err(format!("other octets than were sent, at {at}").into());
        }
        at = end;
    }
    if at != octets { Err(format!("{at} octets instead of {octets}").into()) } else { Ok(()) }
}

async fn transfer(to: SocketAddr, octets: u64) -> Outcome<()> {
    let (endpoint, connection) = connect(to).await?;
    let begun = Instant::now();
    ask(&connection, octets).await?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"octets\":{octets},\"seconds\":{seconds:.6},\"rate\":{:.1}}}", octets as f64 / seconds);
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(())
}

async fn requests(to: SocketAddr, count: u64, at_once: u64) -> Outcome<()> {
    let (endpoint, connection) = connect(to).await?;
    let begun = Instant::now();
    let askers: Vec<_> = (0..at_once)
        .map(|n| {
            let connection = connection.clone();
            let mine = count / at_once + u64::from(n < count % at_once);
            tokio::spawn(async move {
                for _ in 0..mine {
                    ask(&connection, 64).await?;
                }
                Outcome::Ok(())
            })
        })
        .collect();
    for asker in askers {
        asker.await??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"requests\":{count},\"seconds\":{seconds:.6},\"rate\":{:.1}}}", count as f64 / seconds);
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(())
}

fn number(text: &str) -> Outcome<u64> {
    text.parse().map_err(|error| format!("{text}: {error}").into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| "another provider is there")?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", at] => serve(at.parse()?).await,
        ["transfer", to, octets] => transfer(to.parse()?, number(octets)?).await,
        ["requests", to, count, at_once] => requests(to.parse()?, number(count)?, number(at_once)?.max(1)).await,
        _ => Err("usage: quic-load serve AT | transfer TO OCTETS | requests TO COUNT AT-ONCE".into()),
    }
}
