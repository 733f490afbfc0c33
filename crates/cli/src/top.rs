//! `highwater top`: follows a run that is being recorded. It waits for a file that does not exist yet.

mod screen;
mod view;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use highwater_tracking::{Follower, HwmError, RecordingLimits};

use crate::exit;
use crate::files::input;
use screen::{Key, Screen};
use view::{Order, View};

/// The arguments of `highwater top`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArguments {
    /// A recording in progress, as examples write with --record, or a finished one
    ///
    /// The command waits for a file that does not exist yet.
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// The interval between updates, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every: u64,

    /// Print the current state and exit; a file that does not exist is an error
    ///
    /// Without a terminal the command prints once too, as soon as the file exists.
    #[arg(long)]
    once: bool,
}

/// How many holders to print with --once.
const PRINTED_HOLDERS: usize = 20;

/// The width of the output of --once.
const PRINTED_WIDTH: usize = 100;

pub(crate) fn run(arguments: &TopArguments) -> io::Result<ExitCode> {
    let followed =
        if arguments.once || !io::stdout().is_terminal() { print(arguments)? } else { watch(arguments)? };
    match followed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(problem) => exit::fail(&problem, exit::BAD_FILE),
    }
}

/// Prints the current state once.
fn print(arguments: &TopArguments) -> io::Result<Result<(), Problem>> {
    let opened = if arguments.once { Followed::open(&arguments.run) } else { wait(arguments)? };
    let followed = match opened {
        Ok(followed) => followed,
        Err(problem) => return Ok(Err(problem)),
    };
    let view = View::new(&arguments.run, &followed.follower, Order::Live, None);
    let mut stdout = io::stdout().lock();
    for line in view.lines(PRINTED_WIDTH, PRINTED_HOLDERS) {
        writeln!(stdout, "{line}")?;
    }
    stdout.flush().map(Ok)
}

/// Opens the file as soon as it exists.
fn wait(arguments: &TopArguments) -> io::Result<Result<Followed, Problem>> {
    let mut tells = io::stderr().is_terminal();
    loop {
        if let Some(opened) = Followed::open_if_exists(&arguments.run).transpose() {
            return Ok(opened);
        }
        if std::mem::take(&mut tells) {
            writeln!(io::stderr(), "{}", view::waiting(&arguments.run))?;
        }
        thread::sleep(Duration::from_millis(arguments.every));
    }
}

/// Shows the run until the user quits or the file becomes unreadable.
fn watch(arguments: &TopArguments) -> io::Result<Result<(), Problem>> {
    let mut followed = match Followed::open_if_exists(&arguments.run) {
        Ok(followed) => followed,
        Err(problem) => return Ok(Err(problem)),
    };
    let mut screen = Screen::open()?;
    let mut order = Order::Live;
    let events = |followed: &Option<Followed>| followed.as_ref().map_or(0, |run| run.follower.events());
    let (mut before, mut rate) = ((Instant::now(), events(&followed)), None);
    loop {
        let (columns, rows) = screen.size()?;
        screen.show(&match &followed {
            Some(run) => View::new(&arguments.run, &run.follower, order, rate).fitting(columns, rows),
            None => view::waiting_fitting(&arguments.run, columns, rows),
        })?;
        match screen.wait(Duration::from_millis(arguments.every))? {
            Key::Quit => return Ok(Ok(())),
            Key::Order => order = order.next(),
            Key::Redraw => {}
            Key::None => {
                let polled = match &mut followed {
                    Some(run) => run.poll(),
                    None => Followed::open_if_exists(&arguments.run).map(|opened| followed = opened),
                };
                if let Err(problem) = polled {
                    return Ok(Err(problem));
                }
                let (now, events) = (Instant::now(), events(&followed));
                let passed = now.duration_since(before.0).as_secs_f64();
                if passed >= 1.0 {
                    rate = Some(events.saturating_sub(before.1) as f64 / passed);
                    before = (now, events);
                }
            }
        }
    }
}

/// A followed file and its state.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    follower: Follower<File>,
}

/// The reason why a file cannot be followed.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("standard input cannot be followed: name a file, or use `highwater report -`")]
    Standard,
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Recording { path: PathBuf, error: HwmError },
}

impl Followed {
    /// Opens a file and reads what it contains.
    fn open(path: &Path) -> Result<Self, Problem> {
        if path.as_os_str() == input::STANDARD {
            return Err(Problem::Standard);
        }
        let file = input::open_file(path).map_err(|error| Problem::Open { path: path.to_owned(), error })?;
        let follower = Follower::new(file, RecordingLimits::default());
        let mut followed = Self { path: path.to_owned(), follower };
        followed.poll()?;
        Ok(followed)
    }

    /// Opens a file, unless it does not exist yet.
    fn open_if_exists(path: &Path) -> Result<Option<Self>, Problem> {
        match Self::open(path) {
            Ok(followed) => Ok(Some(followed)),
            Err(Problem::Open { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Reads the file's new bytes. A shorter file was restarted.
    fn poll(&mut self) -> Result<(), Problem> {
        if self.follower.reader().metadata().is_ok_and(|file| file.len() < self.follower.offset()) {
            *self = Self::open(&self.path)?;
        }
        let polled = self.follower.poll();
        polled.map(drop).map_err(|error| Problem::Recording { path: self.path.clone(), error })
    }
}
