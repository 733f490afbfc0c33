//! `highwater top`: follows a run that is being recorded. It waits for a file that does not exist yet.

mod screen;
mod view;

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use highwater_tracking::{Follower, RecordingLimits};

use crate::error::{CommandError, STANDARD};
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

pub(crate) fn run(arguments: &TopArguments) -> Result<(), CommandError> {
    if arguments.once || !io::stdout().is_terminal() { print(arguments) } else { watch(arguments) }
}

/// Prints the current state once.
fn print(arguments: &TopArguments) -> Result<(), CommandError> {
    let followed = if arguments.once { Followed::open(&arguments.run)? } else { wait(arguments)? };
    let view = View::new(&arguments.run, &followed.follower, Order::Live, None);
    let mut stdout = io::stdout().lock();
    for line in view.lines(PRINTED_WIDTH, PRINTED_HOLDERS) {
        writeln!(stdout, "{line}")?;
    }
    Ok(stdout.flush()?)
}

/// Opens the file as soon as it exists.
fn wait(arguments: &TopArguments) -> Result<Followed, CommandError> {
    let mut tells = io::stderr().is_terminal();
    loop {
        if let Some(opened) = Followed::open_if_exists(&arguments.run)? {
            return Ok(opened);
        }
        if std::mem::take(&mut tells) {
            writeln!(io::stderr(), "{}", view::waiting(&arguments.run))?;
        }
        thread::sleep(Duration::from_millis(arguments.every));
    }
}

/// Shows the run until the user quits or the file becomes unreadable.
fn watch(arguments: &TopArguments) -> Result<(), CommandError> {
    let mut followed = Followed::open_if_exists(&arguments.run)?;
    let mut screen = Screen::open()?;
    let mut order = Order::Live;
    let events = |followed: &Option<Followed>| followed.as_ref().map_or(0, |run| run.follower.events());
    let (mut before, mut rate) = ((Instant::now(), events(&followed)), None);
    loop {
        let (columns, rows) = screen.size()?;
        screen.show(&match &followed {
            Some(run) => View::new(&arguments.run, &run.follower, order, rate).cropped(columns, rows),
            None => view::waiting_cropped(&arguments.run, columns, rows),
        })?;
        match screen.wait(Duration::from_millis(arguments.every))? {
            Key::Quit => return Ok(()),
            Key::Order => order = order.next(),
            Key::Redraw => {}
            Key::None => {
                match &mut followed {
                    Some(run) => run.poll()?,
                    None => followed = Followed::open_if_exists(&arguments.run)?,
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

impl Followed {
    /// Opens a file and reads what it contains.
    fn open(path: &Path) -> Result<Self, CommandError> {
        if path.as_os_str() == STANDARD {
            let problem = "standard input cannot be followed: name a file, or use `highwater report -`";
            return Err(CommandError::Usage(problem.to_owned()));
        }
        let file = input::open_file(path).map_err(|error| CommandError::read(path, &error))?;
        let follower = Follower::new(file, RecordingLimits::default());
        let mut followed = Self { path: path.to_owned(), follower };
        followed.poll()?;
        Ok(followed)
    }

    /// Opens a file, unless it does not exist yet.
    fn open_if_exists(path: &Path) -> Result<Option<Self>, CommandError> {
        let is_missing = path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_missing && path.as_os_str() != STANDARD { Ok(None) } else { Self::open(path).map(Some) }
    }

    /// Reads the file's new bytes. A shorter file was restarted.
    fn poll(&mut self) -> Result<(), CommandError> {
        if self.follower.reader().metadata().is_ok_and(|file| file.len() < self.follower.offset()) {
            *self = Self::open(&self.path)?;
        }
        self.follower.poll().map(drop).map_err(|error| CommandError::read(&self.path, &error))
    }
}
