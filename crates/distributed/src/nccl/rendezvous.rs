//! One exchange over TCP, which brings the id of a communicator from rank 0 to all ranks.
//!
//! Rank 0 listens, the others connect with retries. Rank 0 answers only when all ranks have connected, so that it can
//! name the missing ones. Connections of other programs are dropped. The id is not secret from machines that can reach
//! the port: run in a private network, as NCCL itself requires.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use bfc_cuda::UniqueId;

use super::message::{Hello, Reply};
use crate::error::NcclConnectError;
use crate::launch::{Launch, LaunchError};

const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
/// `torchrun` sets it to `True` if its own process listens at `MASTER_PORT`.
const PORT_IS_TAKEN: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// The pause between two attempts or polls.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a new connection may say nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// The most connections that have said nothing yet.
const MOST_SILENT: usize = 256;
/// The time to connect to one address.
const CONNECT: Duration = Duration::from_secs(5);
/// The least time for the messages themselves.
const LEAST: Duration = Duration::from_millis(50);
/// The most refusals that an error lists.
const MOST_REFUSALS: usize = 4;

/// The place where ranks without another connection get the communicator's id from rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    rank: usize,
    size: usize,
    host: String,
    port: u16,
}

impl Rendezvous {
    /// Rank 0 listens at this host and port, and all ranks pass the same ones.
    ///
    /// # Errors
    ///
    /// The rank is not below the number of ranks.
    pub fn new(
        rank: usize,
        size: usize,
        host: impl Into<String>,
        port: u16,
    ) -> Result<Self, NcclConnectError> {
        if rank >= size || u32::try_from(size).is_err() {
            return Err(NcclConnectError::Rank { rank, size });
        }
        Ok(Self { rank, size, host: host.into(), port })
    }

    /// Reads `MASTER_ADDR` and `MASTER_PORT`, which `torchrun` sets. If `torchrun` itself listens at this port, the
    /// exchange uses the next one.
    ///
    /// # Errors
    ///
    /// A variable is missing or invalid.
    pub fn from_env(launch: &Launch) -> Result<Self, NcclConnectError> {
        Self::from_variables(launch, |name| std::env::var(name).ok())
    }

    /// Like [`from_env`](Self::from_env), with the variables that `lookup` returns.
    ///
    /// ```
    /// use highwater_distributed::{Launch, Launcher, Rendezvous};
    ///
    /// let launch =
    ///     Launch { launcher: Launcher::Torchrun, rank: 1, size: 2, local_rank: 1, local_size: 2 };
    /// let variables = |name: &str| match name {
    ///     "MASTER_ADDR" => Some("node0".into()),
    ///     "MASTER_PORT" => Some("29500".into()),
    ///     "TORCHELASTIC_USE_AGENT_STORE" => Some("True".into()),
    ///     _ => None,
    /// };
    /// let rendezvous = Rendezvous::from_variables(&launch, variables)?;
    /// assert_eq!(rendezvous.address(), "node0:29501");
    /// # Ok::<(), highwater_distributed::NcclConnectError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A variable is missing or invalid.
    pub fn from_variables(
        launch: &Launch,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NcclConnectError> {
        let value =
            |variable| lookup(variable).ok_or(LaunchError::Missing { launcher: launch.launcher, variable });
        let (host, port) = (value(HOST)?, value(PORT)?);
        if host.trim().is_empty() {
            let expected = "the host name or address of rank 0".into();
            return Err(LaunchError::Invalid { variable: HOST, value: host, expected }.into());
        }
        let is_taken = lookup(PORT_IS_TAKEN).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let port = match port.trim().parse::<u16>() {
            Ok(u16::MAX) if is_taken => u16::MAX - 1,
            Ok(port) if port > 0 => port + u16::from(is_taken),
            _ => {
                let expected = "a port from 1 to 65535".into();
                return Err(LaunchError::Invalid { variable: PORT, value: port, expected }.into());
            }
        };
        Self::new(launch.rank, launch.size, host.trim(), port)
    }

    /// Returns the number of this rank, from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the host and port of rank 0.
    #[must_use]
    pub fn address(&self) -> String {
        // IPv6 addresses contain colons.
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Sends the id to all other ranks, and returns it. Only rank 0 calls this.
    pub(super) fn send(&self, id: UniqueId, limit: Duration) -> Result<UniqueId, NcclConnectError> {
        if self.size == 1 {
            return Ok(id);
        }
        let mut ranks = Ranks::listen(self)?;
        let deadline = Instant::now().checked_add(limit);
        while !ranks.are_complete() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let (missing, refused) = (ranks.missing(), ranks.refused);
                let address = self.address();
                return Err(NcclConnectError::Missing { missing, address, limit, refused });
            }
            ranks.poll();
            thread::sleep(PAUSE);
        }
        let reply = Reply::Id(id.clone()).to_bytes();
        for stream in ranks.connected.iter_mut().flatten() {
            // A rank that has gone is missed by NCCL.
            let _ = stream.set_nonblocking(false).and_then(|()| stream.write_all(&reply));
        }
        Ok(id)
    }

    /// Receives the id from rank 0.
    pub(super) fn receive(&self, limit: Duration) -> Result<UniqueId, NcclConnectError> {
        let deadline = Instant::now().checked_add(limit);
        let (rank, size, address) = (self.rank, self.size, self.address());
        loop {
            let left =
                deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            match self.ask(left) {
                Ok(Some(Reply::Id(id))) => return Ok(id),
                Ok(Some(Reply::OtherSize(expected))) => {
                    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
                    return Err(NcclConnectError::OtherSize { rank, size, expected, address });
                }
                Ok(Some(Reply::SameRank)) => return Err(NcclConnectError::SameRank { rank, address }),
                Ok(None) => return Err(NcclConnectError::OtherProgram { rank, address }),
                Err(cause) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(NcclConnectError::Unreachable { rank, address, limit, cause });
                }
                // Rank 0 may start later than this rank.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Connects to rank 0 and asks for the id; `None` if another program answers.
    fn ask(&self, left: Duration) -> io::Result<Option<Reply>> {
        let mut stream = self.reach(left.clamp(LEAST, CONNECT))?;
        let left = left.max(LEAST);
        // The longest time-out is unlimited.
        let limit = (left < Duration::MAX).then_some(left);
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        stream.write_all(&Hello { rank: self.rank as u64, size: self.size as u64 }.to_bytes())?;
        let mut reply = [0; Reply::BYTES];
        stream.read_exact(&mut reply).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "it closed the connection"),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => io::Error::new(
                ErrorKind::TimedOut,
                "it sends nothing: it waits for other ranks, or is another program",
            ),
            _ => error,
        })?;
        Ok(Reply::from_bytes(reply))
    }

    /// Connects to the first address of the host that accepts.
    fn reach(&self, limit: Duration) -> io::Result<TcpStream> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Listens at the loopback address if the host is that, else at all addresses: the host's name may be another one here
    /// than on other machines.
    fn listener(&self) -> io::Result<TcpListener> {
        let is_loopback =
            self.host == "localhost" || self.host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        if is_loopback {
            return TcpListener::bind((self.host.as_str(), self.port));
        }
        // The first one accepts IPv4 too, unless the machine has no IPv6.
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)))
    }
}

/// A connection that has not said all of its first message.
struct Silent {
    stream: TcpStream,
    bytes: [u8; Hello::BYTES],
    received: usize,
    since: Instant,
}

/// The connections of rank 0.
struct Ranks {
    listener: TcpListener,
    silent: Vec<Silent>,
    /// By rank; none for rank 0.
    connected: Vec<Option<TcpStream>>,
    refused: Vec<String>,
}

impl Ranks {
    fn listen(rendezvous: &Rendezvous) -> Result<Self, NcclConnectError> {
        let listener = rendezvous.listener().and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let failed = |cause| NcclConnectError::Listen { address: rendezvous.address(), cause };
        let connected = (0..rendezvous.size).map(|_| None).collect();
        Ok(Self { listener: listener.map_err(failed)?, silent: Vec::new(), connected, refused: Vec::new() })
    }

    fn are_complete(&self) -> bool {
        self.connected.iter().skip(1).all(Option::is_some)
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.connected.len()).filter(|&rank| self.connected[rank].is_none()).collect()
    }

    /// Accepts new connections and reads what the silent ones have sent.
    fn poll(&mut self) {
        while self.silent.len() < MOST_SILENT {
            // Another failure than "would block" concerns one connection, or passes.
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.silent.push(Silent { stream, bytes: [0; _], received: 0, since: Instant::now() });
            }
        }
        for mut silent in std::mem::take(&mut self.silent) {
            match silent.stream.read(&mut silent.bytes[silent.received..]) {
                // It has closed the connection.
                Ok(0) => {}
                Ok(count) => {
                    silent.received += count;
                    if silent.received < Hello::BYTES {
                        self.silent.push(silent);
                    } else if let Some(hello) = Hello::from_bytes(silent.bytes) {
                        self.welcome(hello, silent.stream);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if silent.since.elapsed() < SILENCE {
                        self.silent.push(silent);
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Keeps the connection of a rank, or refuses it.
    fn welcome(&mut self, hello: Hello, mut stream: TcpStream) {
        let Hello { rank, size } = hello;
        let own = self.connected.len() as u64;
        let (reply, reason) = if size != own || rank >= own {
            (Reply::OtherSize(own), format!("rank {rank} among {size} ranks"))
        } else {
            let place = usize::try_from(rank).unwrap_or(usize::MAX);
            match self.connected.get_mut(place) {
                Some(free @ None) if place > 0 => {
                    *free = Some(stream);
                    return;
                }
                _ => (Reply::SameRank, format!("a second rank {rank}")),
            }
        };
        if self.refused.len() < MOST_REFUSALS {
            self.refused.push(reason);
        }
        // A new connection has room for so few bytes.
        let _ = stream.write_all(&reply.to_bytes());
    }
}

#[cfg(test)]
mod tests;
