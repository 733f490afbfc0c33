use super::*;
use crate::launch::Launcher;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(400);

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn id() -> UniqueId {
    UniqueId::from_bytes(std::array::from_fn(|index| index as u8))
}

fn meet(rank: usize, size: usize, port: u16, limit: Duration) -> Result<UniqueId, NcclConnectError> {
    let rendezvous = Rendezvous::new(rank, size, "127.0.0.1", port)?;
    if rank == 0 { rendezvous.send(id(), limit) } else { rendezvous.receive(limit) }
}

/// Connects like a rank, and sends these bytes. Rank 0 may start later.
fn say(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(PAUSE),
        }
    };
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn all_ranks_get_the_id_of_rank_0() {
    let port = free_port();
    let ids: Vec<UniqueId> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..5).rev().map(|rank| scope.spawn(move || meet(rank, 5, port, LONG))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    });
    assert_eq!(ids, vec![id(); 5]);
    assert_eq!(meet(0, 1, port, LONG).unwrap(), id());
}

#[test]
fn other_programs_are_ignored() {
    let port = free_port();
    thread::scope(|scope| {
        let main = scope.spawn(move || meet(0, 2, port, LONG));
        // One says nothing, one says half a message, one another message, one leaves.
        let _silent = say(port, b"");
        let _half = say(port, b"hw-nccl1\x01");
        let mut other = say(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        drop(say(port, b"hw"));
        // Rank 0 closes the connection without an answer; what it did not read resets it.
        let mut answer = Vec::new();
        let _ = other.read_to_end(&mut answer);
        assert_eq!(answer, b"");
        assert_eq!(meet(1, 2, port, LONG).unwrap(), id());
        assert_eq!(main.join().unwrap().unwrap(), id());
    });
}

#[test]
fn rank_0_names_the_ranks_that_are_missing() {
    let port = free_port();
    thread::scope(|scope| {
        let other = scope.spawn(move || meet(2, 4, port, SHORT));
        let error = meet(0, 4, port, SHORT).unwrap_err().to_string();
        let expected = format!(
            "ranks 1, 3 did not connect to rank 0 at 127.0.0.1:{port} within 400ms; look for their errors, or raise the \
             time limit"
        );
        assert_eq!(error, expected);
        let error = other.join().unwrap().unwrap_err();
        assert!(matches!(error, NcclConnectError::Unreachable { rank: 2, .. }), "{error}");
    });
}

#[test]
fn without_rank_0_the_others_say_so() {
    let port = free_port();
    let error = meet(1, 2, port, SHORT).unwrap_err().to_string();
    let expected =
        format!("rank 1 got no answer from rank 0 at 127.0.0.1:{port} within 400ms: Connection refused");
    assert!(error.starts_with(&expected), "{error}");
    // A listener that never answers.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = meet(1, 2, port, SHORT).unwrap_err().to_string();
    assert!(error.contains("it sends nothing: it waits for other ranks, or is another program"), "{error}");
}

#[test]
fn a_program_that_answers_otherwise_is_an_error() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(&[b'x'; Reply::BYTES]).unwrap());
        let error = meet(1, 2, port, LONG).unwrap_err();
        assert!(
            matches!(&error, NcclConnectError::OtherProgram { rank: 1, address } if *address == format!("127.0.0.1:{port}"))
        );
    });
}

#[test]
fn ranks_of_other_worlds_and_second_ranks_are_refused() {
    let port = free_port();
    thread::scope(|scope| {
        let main = scope.spawn(move || meet(0, 3, port, Duration::from_secs(2)));
        let first = scope.spawn(move || meet(1, 3, port, Duration::from_secs(2)));
        let error = meet(1, 2, port, LONG).unwrap_err();
        let expected = format!(
            "rank 1 was started among 2 ranks, but rank 0 at 127.0.0.1:{port} among 3: start all ranks alike"
        );
        assert_eq!(error.to_string(), expected);
        // A process that claims to be rank 0 is a second one too.
        let mut second = say(port, &Hello { rank: 0, size: 3 }.to_bytes());
        let mut reply = [0; Reply::BYTES];
        second.read_exact(&mut reply).unwrap();
        assert_eq!(Reply::from_bytes(reply), Some(Reply::SameRank));
        let error = main.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("rank 2 did not connect"), "{error}");
        assert!(error.contains(" (refused: rank 1 among 2 ranks, a second rank 0)"), "{error}");
        assert!(first.join().unwrap().is_err());
    });
}

#[test]
fn a_port_in_use_and_wrong_ranks_are_errors() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = meet(0, 2, port, LONG).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("rank 0 cannot listen at 127.0.0.1:{port}: Address already in use")),
        "{error}"
    );
    assert!(matches!(Rendezvous::new(2, 2, "a", 1), Err(NcclConnectError::Rank { rank: 2, size: 2 })));
    assert!(Rendezvous::new(0, 0, "a", 1).is_err());
}

#[test]
fn variables_are_read_and_checked() {
    let read = |host: Option<&str>, port: Option<&str>, store: Option<&str>| {
        let launch = Launch { launcher: Launcher::Torchrun, rank: 0, size: 2, local_rank: 0, local_size: 2 };
        let owned = |value: Option<&str>| value.map(str::to_owned);
        Rendezvous::from_variables(&launch, |name| match name {
            HOST => owned(host),
            PORT => owned(port),
            PORT_IS_TAKEN => owned(store),
            _ => None,
        })
        .map(|rendezvous| rendezvous.address())
        .map_err(|error| error.to_string())
    };
    assert_eq!(read(Some("node0"), Some("29500"), None), Ok("node0:29500".into()));
    assert_eq!(read(Some("::1"), Some(" 29500 "), Some("False")), Ok("[::1]:29500".into()));
    assert_eq!(read(Some("node0"), Some("29500"), Some("True")), Ok("node0:29501".into()));
    assert_eq!(read(Some("node0"), Some("65535"), Some("True")), Ok("node0:65534".into()));
    let invalid = |value: &str| Err(format!("MASTER_PORT is {value:?}, but must be a port from 1 to 65535"));
    assert_eq!(read(Some("node0"), Some("0"), None), invalid("0"));
    assert_eq!(read(Some("node0"), Some("65536"), None), invalid("65536"));
    assert!(read(Some(" "), Some("1"), None).unwrap_err().starts_with("MASTER_ADDR is \" \", but must be"));
    assert!(read(Some("node0"), None, None).unwrap_err().contains("MASTER_PORT is not set"));
}
