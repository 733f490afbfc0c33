//! Checkpoints: the whole state of a training run in one safetensors file.

mod partly;
mod pytorch;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use highwater_files::FileKind;
use highwater_tensor::{
    DType, Error, Result, Rng, Shape,
    backend::RandomKey,
    error::{FileError, Mismatch, Skipped},
};

use crate::io::safetensors::write_arrays_to;
use crate::io::state_dict::is_state_dict;
use crate::io::{
    Array, Arrays, Loaded, Safetensors, SafetensorsLimits, mismatch, read_safetensors_from,
    read_state_dict_from, write_atomically,
};
use crate::modules::{Module, Parameter};
use crate::optim::{Ema, LossScaler, Optimizer, ReduceOnPlateau};

pub use partly::PartlyRestored;

/// Prefix of the names of the optimizer's arrays. No parameter may use it.
const OPTIMIZER: &str = "optimizer/";
/// Prefix of the names of the arrays of averaged parameters. No parameter may use it.
const EMA: &str = "ema/";
/// Metadata key: the name of the optimizer.
const OPTIMIZER_NAME: &str = "highwater.optimizer";
/// Metadata key: the step.
const STEP: &str = "highwater.step";
/// Prefix of metadata keys: the seed and the position of a random generator, by path.
const RNG: &str = "highwater.rng/";
/// Metadata key: the state of a loss scaler.
const SCALER: &str = "highwater.loss_scaler";
/// Metadata key: the state of a learning rate that falls on plateaus.
const PLATEAU: &str = "highwater.reduce_on_plateau";
/// Prefix of metadata keys: notes, by name.
const NOTE: &str = "highwater.note/";

/// A checkpoint of a training run: parameters, optimizer state, averaged parameters, step, random generators, loss scaler,
/// learning rate schedule and notes.
///
/// A run that restores all of them continues as if it had never stopped.
///
/// Parameters are stored under their paths, so other programs can read the file as safetensors. A safetensors file of
/// another program is a checkpoint with parameters only.
///
/// ```
/// use highwater::{Device, Rng};
/// use highwater::io::Checkpoint;
/// use highwater::nn::{Linear, Module};
/// use highwater::optim::Adam;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.safetensors");
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let layer = Linear::new(&device, 8, 2, &rng)?;
/// let adam = Adam::new(layer.parameters(), 1e-3)?;
/// Checkpoint::of(&layer)?.with_optimizer(&adam)?.with_step(100).save(&path)?;
///
/// let other = Linear::new(&device, 8, 2, &rng)?;
/// let mut adam = Adam::new(other.parameters(), 1e-3)?;
/// let checkpoint = Checkpoint::load(&path)?;
/// checkpoint.restore_all(&other, &mut adam)?;
/// assert_eq!(checkpoint.step(), Some(100));
/// assert_eq!(other.weight().tensor().to_vec::<f32>()?, layer.weight().tensor().to_vec::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # From PyTorch
///
/// [`load`](Self::load) reads the files of `safetensors.torch.save_file(net.state_dict(), path)` and of
/// `torch.save(net.state_dict(), path)`, without executing any code.
/// [`converted_from_pytorch`](Self::converted_from_pytorch) converts names and axes:
///
/// ```no_run
/// # use highwater::io::Checkpoint;
/// # use highwater::nn::Sequential;
/// # let net = Sequential::new();
/// Checkpoint::load("net.pt")?.converted_from_pytorch(&net)?.restore(&net)?;
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// [`renamed`](Self::renamed) and [`transposed`](Self::transposed) convert files of other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The file that the checkpoint was read from.
    path: PathBuf,
    parameters: Arrays,
    optimizer: Arrays,
    /// The name of the optimizer; empty if the file has none.
    optimizer_name: String,
    /// The state of averages; empty if the file has none.
    ema: Arrays,
    rngs: BTreeMap<String, (u64, u64)>,
    step: Option<u64>,
    scaler: Option<LossScaler>,
    plateau: Option<ReduceOnPlateau>,
    notes: BTreeMap<String, String>,
    skipped: Vec<Skipped>,
}

impl Checkpoint {
    /// Creates a checkpoint of a module: its parameters, its buffers (such as running means) and its random generators.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if two parameters or two random generators have the same path, [`Error::NoData`] on a dry
    /// device, [`Error::NoHostMemory`] if host memory runs out.
    pub fn of(module: &(impl Module + ?Sized)) -> Result<Self> {
        let mut checkpoint = Self::default();
        let mut seen: BTreeMap<String, Parameter> = BTreeMap::new();
        for (path, parameter) in parameters_and_buffers(module) {
            if let Some(other) = seen.insert(path.clone(), parameter.clone()) {
                if other.is_same(&parameter) {
                    continue;
                }
                return Err(duplicate_path("save", "one whose parameters have unique paths", &path));
            }
            checkpoint.parameters.insert(path, Array::of(&parameter.tensor())?);
        }
        checkpoint.rngs = rngs("save", module)?;
        Ok(checkpoint)
    }

    /// Adds the state of an optimizer. With several optimizers, create one checkpoint for each, with the module that it
    /// trains.
    ///
    /// # Errors
    /// See [`of`](Self::of); [`Error::BadArgument`] if the checkpoint already has an optimizer.
    pub fn with_optimizer(mut self, optimizer: &(impl Optimizer + ?Sized)) -> Result<Self> {
        if !self.optimizer.is_empty() {
            let expected = "the only one of the checkpoint; create one checkpoint per optimizer, with the module that it trains";
            let got = match self.optimizer_name.as_str() {
                "" => "another one".to_owned(),
                name => format!("another one, after {name}"),
            };
            return Err(Error::BadArgument { op: "save", argument: "optimizer", expected, got });
        }
        self.optimizer = optimizer.state()?;
        optimizer.name().clone_into(&mut self.optimizer_name);
        Ok(self)
    }

    /// Adds averaged parameters, beside the parameters themselves.
    ///
    /// ```
    /// use highwater::io::Checkpoint;
    /// use highwater::nn::{Linear, Module};
    /// use highwater::optim::{Ema, Sgd};
    /// # use highwater::{Device, Rng};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.safetensors");
    /// let layer = Linear::new(&Device::cpu()?, 8, 2, &Rng::new(0))?;
    /// let (mut sgd, mut ema) = (Sgd::new(layer.parameters(), 0.1)?, Ema::new(layer.parameters(), 0.999)?);
    /// Checkpoint::of(&layer)?.with_optimizer(&sgd)?.with_ema(&ema)?.save(&path)?;
    /// // To resume:
    /// let checkpoint = Checkpoint::load(&path)?;
    /// checkpoint.restore_all(&layer, &mut sgd)?;
    /// checkpoint.restore_ema(&mut ema)?;
    /// // The averaged model alone, for programs that only evaluate it:
    /// ema.with_averages(|| Checkpoint::of(&layer))?.save(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Ema::state`].
    pub fn with_ema(mut self, ema: &Ema) -> Result<Self> {
        self.ema = ema.state()?;
        Ok(self)
    }

    /// Sets the number of completed steps.
    #[must_use]
    pub const fn with_step(mut self, step: u64) -> Self {
        self.step = Some(step);
        self
    }

    /// Returns the number of completed steps, if the checkpoint has it.
    #[must_use]
    pub const fn step(&self) -> Option<u64> {
        self.step
    }

    /// Adds the state of a loss scaler: its scale and its progress towards the next scale.
    ///
    /// ```
    /// use highwater::io::Checkpoint;
    /// use highwater::optim::LossScaler;
    /// # use highwater::nn::Linear;
    /// # use highwater::{Device, Rng};
    /// # let layer = Linear::new(&Device::cpu()?, 2, 2, &Rng::new(0))?;
    /// let mut scaler = LossScaler::dynamic();
    /// let checkpoint = Checkpoint::of(&layer)?.with_scaler(&scaler);
    /// // To resume, from a file as well:
    /// if let Some(saved) = checkpoint.scaler() {
    ///     scaler.clone_from(saved);
    /// }
    /// # assert_eq!(scaler, LossScaler::dynamic());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn with_scaler(mut self, scaler: &LossScaler) -> Self {
        self.scaler = Some(scaler.clone());
        self
    }

    /// Returns the saved loss scaler, if the checkpoint has one.
    #[must_use]
    pub const fn scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// Adds the state of a learning rate that falls on plateaus. The rate itself is part of the optimizer's state.
    #[must_use]
    pub fn with_plateau(mut self, plateau: &ReduceOnPlateau) -> Self {
        self.plateau = Some(plateau.clone());
        self
    }

    /// Returns the saved state of a learning rate that falls on plateaus, if the checkpoint has one. To resume, pass it to
    /// [`ReduceOnPlateau::resume`].
    #[must_use]
    pub const fn plateau(&self) -> Option<&ReduceOnPlateau> {
        self.plateau.as_ref()
    }

    /// Adds a text under a name, for example the alphabet of a language model. The program defines its meaning and can
    /// check it when it resumes.
    ///
    /// ```
    /// use highwater::io::Checkpoint;
    /// let checkpoint = Checkpoint::default().with_note("alphabet", "abc");
    /// assert_eq!(checkpoint.note("alphabet"), Some("abc"));
    /// ```
    #[must_use]
    pub fn with_note(mut self, name: &str, text: &str) -> Self {
        self.notes.insert(name.to_owned(), text.to_owned());
        self
    }

    /// Returns the note with this name.
    #[must_use]
    pub fn note(&self, name: &str) -> Option<&str> {
        self.notes.get(name).map(String::as_str)
    }

    /// Returns the parameters by path.
    #[must_use]
    pub const fn parameters(&self) -> &Arrays {
        &self.parameters
    }

    /// Returns the members of the file that were skipped: objects other than tensors, and unsupported element types.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Renames parameters, for example those of another program's file. Drops parameters for which `rename` returns
    /// `None`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if two parameters get the same name.
    pub fn renamed(mut self, mut rename: impl FnMut(&str) -> Option<String>) -> Result<Self> {
        for (name, array) in std::mem::take(&mut self.parameters) {
            let Some(new) = rename(&name) else { continue };
            if self.parameters.insert(new.clone(), array).is_some() {
                let (argument, expected) = ("rename", "a unique name for each parameter");
                return Err(Error::BadArgument {
                    op: "load",
                    argument,
                    expected,
                    got: format!("{new} twice"),
                });
            }
        }
        Ok(self)
    }

    /// Transposes the matrices that `select` accepts by name and contents. Use it for linear layers of programs that
    /// store the transpose, such as [PyTorch](Self#from-pytorch).
    ///
    /// # Errors
    /// [`Error::BadRank`] if a selected array is no matrix, [`Error::NoHostMemory`] if host memory runs out.
    pub fn transposed(mut self, mut select: impl FnMut(&str, &Array) -> bool) -> Result<Self> {
        for (name, array) in &mut self.parameters {
            if select(name, array) {
                *array = array.transposed()?;
            }
        }
        Ok(self)
    }

    /// Writes the checkpoint to a file atomically; see [`write_atomically`].
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::ReservedName`] for a parameter whose name begins with `optimizer/` or `ema/`, which
    /// are reserved for the optimizer's state and averaged parameters.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        for (prefix, of) in [(OPTIMIZER, "the state of the optimizer"), (EMA, "averaged parameters")] {
            if let Some(name) = self.parameters.keys().find(|name| name.starts_with(prefix)) {
                let (path, name) = (path.to_owned(), name.clone());
                return Err(FileError::ReservedName { path, name, prefix, of });
            }
        }
        let mut arrays: BTreeMap<Cow<'_, str>, &Array> =
            self.parameters.iter().map(|(name, array)| (Cow::from(name), array)).collect();
        let state = self.optimizer.iter();
        arrays.extend(state.map(|(name, array)| (Cow::from(format!("{OPTIMIZER}{name}")), array)));
        let averages = self.ema.iter();
        arrays.extend(averages.map(|(name, array)| (Cow::from(format!("{EMA}{name}")), array)));
        let rngs = self.rngs.iter();
        let mut metadata: BTreeMap<String, String> =
            rngs.map(|(path, (seed, number))| (format!("{RNG}{path}"), format!("{seed} {number}"))).collect();
        metadata.extend(self.scaler.iter().map(|scaler| (SCALER.to_owned(), scaler.to_text())));
        metadata.extend(self.plateau.iter().map(|plateau| (PLATEAU.to_owned(), plateau.to_text())));
        metadata.extend(self.notes.iter().map(|(name, text)| (format!("{NOTE}{name}"), text.clone())));
        let name = Some(&self.optimizer_name).filter(|name| !name.is_empty());
        metadata.extend(name.map(|name| (OPTIMIZER_NAME.to_owned(), name.clone())));
        metadata.extend(self.step.map(|step| (STEP.to_owned(), step.to_string())));
        write_atomically(path, |file| write_arrays_to(file, arrays, &metadata))
    }

    /// Loads a checkpoint from a safetensors file or a [PyTorch state dict](crate::io::read_state_dict). Recognizes the
    /// format by the contents. Members that cannot be read are [listed](Self::skipped).
    ///
    /// # Errors
    /// See [`read_safetensors`](crate::io::read_safetensors) and [`read_state_dict`](crate::io::read_state_dict);
    /// [`FileError::Malformed`] for an invalid step, optimizer, random generator, loss scaler or plateau, and for other
    /// metadata whose key begins with `highwater.`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::load_with(path, &SafetensorsLimits::default())
    }

    /// Loads a checkpoint with other limits of its size: see [`load`](Self::load).
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_with(path: impl AsRef<Path>, limits: &SafetensorsLimits) -> Result<Self, FileError> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(|error| FileError::io(path, &error))?;
        let mut start = Vec::new();
        let read = (&mut file).take(FileKind::START_BYTES as u64).read_to_end(&mut start);
        read.and_then(|_| file.rewind()).map_err(|error| FileError::io(path, &error))?;
        let file = BufReader::new(file);
        // Read as a safetensors header, these bytes would give a length above every limit.
        if is_state_dict(&start) {
            let Loaded { arrays: parameters, skipped } = read_state_dict_from(file, path, limits)?;
            return Ok(Self { path: path.to_owned(), parameters, skipped, ..Self::default() });
        }
        Self::from_contents(read_safetensors_from(file, path, limits)?, path)
    }

    pub(crate) fn from_contents(contents: Safetensors, path: &Path) -> Result<Self, FileError> {
        let mut checkpoint = Self { path: path.to_owned(), skipped: contents.skipped, ..Self::default() };
        let bad = |name: &str, text: &str| FileError::malformed(path, 8, format!("{name} is {text:?}"));
        for (name, array) in contents.arrays {
            match (name.strip_prefix(OPTIMIZER), name.strip_prefix(EMA)) {
                (Some(state), _) => checkpoint.optimizer.insert(state.to_owned(), array),
                (None, Some(state)) => checkpoint.ema.insert(state.to_owned(), array),
                (None, None) => checkpoint.parameters.insert(name, array),
            };
        }
        for (name, text) in &contents.metadata {
            if name == STEP {
                checkpoint.step = Some(count(text).ok_or_else(|| bad(name, text))?);
            } else if name == OPTIMIZER_NAME {
                let is_name = !text.is_empty() && text.trim() == text;
                checkpoint.optimizer_name = is_name.then(|| text.clone()).ok_or_else(|| bad(name, text))?;
            } else if name == SCALER {
                checkpoint.scaler = Some(LossScaler::from_text(text).ok_or_else(|| bad(name, text))?);
            } else if name == PLATEAU {
                checkpoint.plateau = Some(ReduceOnPlateau::from_text(text).ok_or_else(|| bad(name, text))?);
            } else if let Some(name) = name.strip_prefix(NOTE) {
                checkpoint.notes.insert(name.to_owned(), text.clone());
            } else if let Some(path) = name.strip_prefix(RNG) {
                let numbers = text.split_once(' ');
                let state = numbers.and_then(|(seed, number)| Some((count(seed)?, count(number)?)));
                checkpoint.rngs.insert(path.to_owned(), state.ok_or_else(|| bad(name, text))?);
            } else if is_own(name) {
                let problem = format!(
                    "{name:?} is no entry of a checkpoint; the entries are {OPTIMIZER_NAME}, {STEP}, {SCALER}, {PLATEAU}, \
                     {RNG}PATH and {NOTE}NAME"
                );
                return Err(FileError::malformed(path, 8, problem));
            }
        }
        Ok(checkpoint)
    }

    /// Restores the parameters and buffers of a module, and those of its random generators that the checkpoint
    /// contains.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names parameters that are missing, unexpected, or of another shape or element type;
    /// [`Error::Allocation`] if a parameter must be copied and there is no memory. After these errors nothing has
    /// changed. If a device fails during the copies, some parameters have changed.
    pub fn restore(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        self.check(module)?;
        self.apply(module)
    }

    /// Restores a module and its optimizer, so that training continues as if it had never stopped.
    ///
    /// # Errors
    /// - those of [`restore`](Self::restore), also for the optimizer's state and the random generators
    /// - [`FileError::Absent`] without an optimizer's state, and if the optimizer has a [name](Optimizer::name) and the file
    ///   does not name the kind of its state
    /// - [`Error::BadArgument`] if that state belongs to an optimizer of another kind, and if two random generators have the
    ///   same path
    /// - those of [`Optimizer::load_state`]
    pub fn restore_all(
        &self,
        module: &(impl Module + ?Sized),
        optimizer: &mut (impl Optimizer + ?Sized),
    ) -> Result<()> {
        if self.optimizer.is_empty() {
            let what = "state of an optimizer";
            return Err(FileError::Absent { path: self.path.clone(), what }.into());
        }
        self.check(module)?;
        mismatch::check_names(Mismatch::RNGS, &rngs("load", module)?, &self.rngs)?;
        optimizer.check_state(&self.optimizer)?;
        let [saved, name] = [self.optimizer_name.as_str(), optimizer.name()];
        if saved.is_empty() && !name.is_empty() {
            let what = "name of the optimizer (metadata `highwater.optimizer`)";
            return Err(FileError::Absent { path: self.path.clone(), what }.into());
        }
        if saved != name && !name.is_empty() {
            let (argument, expected) = ("optimizer", "of the kind of the saved state");
            let got = format!("{name} for the state of {saved}");
            return Err(Error::BadArgument { op: "load", argument, expected, got });
        }
        // Allocates all memory before the first value changes.
        self.make_unique(module)?;
        optimizer.load_state(&self.optimizer)?;
        self.apply(module)
    }

    /// Restores averaged parameters.
    ///
    /// # Errors
    /// [`FileError::Absent`] if the checkpoint has none; see [`Ema::load_state`].
    pub fn restore_ema(&self, ema: &mut Ema) -> Result<()> {
        self.check_ema(ema)?;
        ema.load_state(&self.ema)
    }

    /// Checks that [`restore_ema`](Self::restore_ema) can restore these averages.
    ///
    /// # Errors
    /// [`FileError::Absent`] if the checkpoint has no averages; see [`Ema::check_state`].
    pub fn check_ema(&self, ema: &Ema) -> Result<()> {
        if self.ema.is_empty() {
            let what = "averages of parameters";
            return Err(FileError::Absent { path: self.path.clone(), what }.into());
        }
        ema.check_state(&self.ema)
    }

    fn check(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        mismatch::check(Mismatch::PARAMETERS, &expected(module), &self.parameters).map_err(|mut mismatch| {
            mismatch.skipped.clone_from(&self.skipped);
            mismatch.into()
        })
    }

    /// Makes the saved parameters of a module writable, so that [`apply`](Self::apply) allocates nothing.
    fn make_unique(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        let saved = parameters_and_buffers(module).into_iter();
        let mut saved = saved.filter(|(path, _)| self.parameters.contains_key(path));
        saved.try_for_each(|(_, parameter)| parameter.make_unique())
    }

    fn apply(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        const OP: &str = "load";
        // Allocates all memory before the first value changes.
        self.make_unique(module)?;
        for (path, parameter) in &parameters_and_buffers(module) {
            let Some(array) = self.parameters.get(path) else { continue };
            parameter.set_bytes(OP, array.bytes())?;
        }
        for (path, rng) in module.rngs() {
            if let Some(&(seed, sequence)) = self.rngs.get(&path) {
                rng.set_state(RandomKey { seed, sequence });
            }
        }
        Ok(())
    }
}

/// Parses a number without sign.
fn count(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Whether a metadata key has the prefix `highwater`: a misspelled one must not be ignored.
fn is_own(key: &str) -> bool {
    let key = key.trim().to_lowercase();
    key.strip_prefix("highwater").is_some_and(|rest| rest.starts_with(|mark: char| !mark.is_alphanumeric()))
}

/// Returns the states of a module's random generators by path.
fn rngs(op: &'static str, module: &(impl Module + ?Sized)) -> Result<BTreeMap<String, (u64, u64)>> {
    let mut generators: BTreeMap<String, Rng> = BTreeMap::new();
    for (path, rng) in module.rngs() {
        // A shared generator counts once.
        if generators.insert(path.clone(), rng.clone()).is_some_and(|other| !other.is_same(&rng)) {
            return Err(duplicate_path(op, "one whose random generators have unique paths", &path));
        }
    }
    let state = |(path, rng): (String, Rng)| (path, (rng.state().seed, rng.state().sequence));
    Ok(generators.into_iter().map(state).collect())
}

/// The error for two items with the same path.
fn duplicate_path(op: &'static str, expected: &'static str, path: &str) -> Error {
    Error::BadArgument { op, argument: "module", expected, got: format!("{path} twice") }
}

/// Returns the element types and shapes of a module's parameters and buffers.
fn expected(module: &(impl Module + ?Sized)) -> BTreeMap<String, (DType, Shape)> {
    let of = |(path, parameter): (String, Parameter)| {
        let tensor = parameter.tensor();
        (path, (tensor.dtype(), *tensor.shape()))
    };
    parameters_and_buffers(module).into_iter().map(of).collect()
}

/// Returns a module's parameters and buffers.
fn parameters_and_buffers(module: &(impl Module + ?Sized)) -> Vec<(String, Parameter)> {
    module.parameters().into_iter().chain(module.buffers()).collect()
}
