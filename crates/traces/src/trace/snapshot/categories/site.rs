//! The part of the program that a stack belongs to.
//!
//! The innermost frame that is clear evidence counts: the forward pass of a closure belongs to the forward pass, though
//! the optimizer calls the closure.

use crate::trace::snapshot::collect::Life;
use crate::trace::snapshot::stacks::{Frame, MOST_FRAMES, NONE, Stacks};

/// A part of a training program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Modules: their construction, moves to a device, loading of parameters.
    Model,
    /// The initialization of parameters, whose blocks are scratch memory.
    Initialization,
    /// Loading of batches.
    Data,
    /// The forward pass of modules, and losses.
    Forward,
    /// The backward pass.
    Backward,
    /// The step of an optimizer.
    Optimizer,
    /// Code of the program outside of these.
    Other,
}

/// The facts of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) part: Part,
    /// Whether a thread of autograd's engine runs it, possibly through a hook or a custom function.
    pub(super) is_engine: bool,
    /// Whether a library allocates a workspace.
    pub(super) is_workspace: bool,
    /// Whether it copies a tensor, possibly from the host.
    pub(super) is_copy: bool,
    /// Whether an optimizer creates its state.
    pub(super) is_initial: bool,
    /// Whether it makes the gradient from which a backward pass starts.
    pub(super) is_root: bool,
    /// Whether it extends a cache of keys and values.
    pub(super) is_cache: bool,
}

impl Site {
    const OTHER: Self = Self {
        part: Part::Other,
        is_engine: false,
        is_workspace: false,
        is_copy: false,
        is_initial: false,
        is_root: false,
        is_cache: false,
    };
    /// An empty stack of a recording with Python frames.
    const ENGINE: Self = Self { part: Part::Backward, is_engine: true, ..Self::OTHER };
}

/// The sites of all stacks.
#[derive(Debug)]
pub(super) struct Sites {
    sites: Vec<Site>,
    /// Whether the stacks have frames of C++, which show copies.
    pub(super) show_copies: bool,
    /// The number of tensors that the optimizer keeps for each parameter, if its file is known.
    pub(super) states: Option<usize>,
}

impl Sites {
    pub(super) fn of(stacks: &Stacks) -> Self {
        let clues: Vec<Clue> =
            (0..stacks.frame_count()).map(|frame| Clue::of(stacks.frame(frame as u32))).collect();
        let numbers = 0..stacks.len() as u32;
        let is_program =
            |stack| outermost(stacks.frames_of(stack), &clues).is_some_and(|clue| clue.is_program);
        let has_program = numbers.clone().any(is_program);
        let site = |stack| site_of(stacks.frames_of(stack), &clues, has_program);
        Self {
            sites: numbers.map(site).collect(),
            show_copies: clues.iter().any(|clue| !clue.is_python),
            states: clues.iter().find_map(|clue| clue.states),
        }
    }

    /// Returns the site that allocated a block. A block without any stack is unknown only if it is older than the first
    /// event.
    pub(super) fn of_block(&self, life: &Life) -> Site {
        if life.stack == NONE && life.born.is_none() { Site::OTHER } else { self.of_stack(life.stack) }
    }

    pub(super) fn of_stack(&self, stack: u32) -> Site {
        self.sites.get(stack as usize).copied().unwrap_or(Site::ENGINE)
    }
}

fn outermost<'a>(frames: &[u32], clues: &'a [Clue]) -> Option<&'a Clue> {
    frames.iter().rev().map(|&frame| &clues[frame as usize]).find(|clue| clue.is_python)
}

fn site_of(frames: &[u32], clues: &[Clue], has_program: bool) -> Site {
    let mut site = Site::OTHER;
    let clues_of = || frames.iter().map(|&frame| &clues[frame as usize]);
    for clue in clues_of() {
        site.is_engine |= clue.is_engine;
        site.is_workspace |= clue.is_workspace;
        site.is_copy |= clue.is_copy;
    }
    // The stack of the main thread ends in the program's module, unless it is cut off.
    site.is_engine |= match outermost(frames, clues) {
        None => true,
        Some(clue) => has_program && !clue.is_program && frames.len() < MOST_FRAMES,
    };
    for clue in clues_of() {
        site.is_cache |= clue.is_cache;
        if let Some(part) = clue.part {
            (site.part, site.is_initial, site.is_root) = (part, clue.is_initial, clue.is_root);
            return site;
        }
    }
    if site.is_engine {
        site.part = Part::Backward;
    }
    site
}

/// The facts that a frame shows.
#[derive(Clone, Copy, Debug, Default)]
struct Clue {
    part: Option<Part>,
    is_python: bool,
    is_program: bool,
    is_engine: bool,
    is_workspace: bool,
    is_copy: bool,
    is_initial: bool,
    is_root: bool,
    is_cache: bool,
    states: Option<usize>,
}

impl Clue {
    fn of(frame: Frame<'_>) -> Self {
        if is_python(frame.file) { Self::of_python(frame) } else { Self::of_cpp(frame.name) }
    }

    fn of_cpp(name: &str) -> Self {
        let starts = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
        Self {
            is_engine: starts(&["torch::autograd::Engine::", "torch::autograd::python::PythonEngine::"]),
            is_workspace: starts(&["at::cuda::getNewWorkspace", "at::cuda::getCUDABlasLtWorkspace"]),
            is_copy: starts(&["at::_ops::_to_copy::", "at::_ops::copy_::"]),
            ..Self::default()
        }
    }

    fn of_python(frame: Frame<'_>) -> Self {
        let mut folders = frame.file.rsplit(['/', '\\']);
        let module = folders.next().unwrap_or_default().trim_end_matches(".py");
        let (folder, outer) = (folders.next().unwrap_or_default(), folders.next().unwrap_or_default());
        let name = frame.name;
        let has_folder = |names: &[&str]| frame.file.split(['/', '\\']).any(|folder| names.contains(&folder));
        let clue = Self {
            is_python: true,
            is_program: matches!(name, "<module>" | "_bootstrap" | "_run_module_as_main" | "_run_code"),
            is_cache: module == "cache_utils",
            ..Self::default()
        };
        let part = |part| Self { part: Some(part), ..clue };
        // A schedule and `zero_grad` run between steps.
        if has_folder(&["optim", "optimizers"]) || module.contains("optimizer") {
            return match (module, name) {
                ("lr_scheduler", _) | (_, "zero_grad") => clue,
                _ => Self {
                    is_initial: name.contains("init"),
                    states: states(module),
                    ..part(Part::Optimizer)
                },
            };
        }
        let is_autograd = outer == "torch" && folder == "autograd" && matches!(module, "__init__" | "graph");
        let is_module = folder == "modules" && module == "module";
        match name {
            _ if is_autograd => Self { is_root: name == "_make_grads", ..part(Part::Backward) },
            "backward" => part(Part::Backward),
            _ if folder == "nn" && module == "init" => part(Part::Initialization),
            "_apply" | "convert" | "<lambda>" | "fn" | "to_empty" if is_module => part(Part::Model),
            "load_state_dict"
            | "_load_from_state_dict"
            | "from_pretrained"
            | "reset_parameters"
            | "deepcopy"
            | "__deepcopy__" => part(Part::Model),
            "__init__" if !has_folder(&["data", "amp", "cuda"]) => part(Part::Model),
            "forward" | "_call_impl" | "training_step" | "compute_loss" | "closure" => part(Part::Forward),
            _ if folder == "nn" && module == "functional" => part(Part::Forward),
            "collate"
            | "default_collate"
            | "pin_memory"
            | "send_to_device"
            | "_prepare_input"
            | "_prepare_inputs"
            | "batch_to_device"
            | "move_data_to_device" => part(Part::Data),
            _ if matches!(module, "dataloader" | "tokenization_utils_base") => part(Part::Data),
            _ => clue,
        }
    }
}

fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.starts_with("<frozen")
}

/// Returns the number of tensors that an optimizer keeps for each parameter, by the name of its Python file.
fn states(module: &str) -> Option<usize> {
    match module {
        "adam" | "adamw" | "nadam" | "radam" | "adamax" | "adadelta" => Some(2),
        "adagrad" | "lion" => Some(1),
        _ => None,
    }
}
