//! Names and values from files reach a terminal through messages: no message has a control character.

use std::io::Cursor;
use std::path::Path;

use bfc_core::{is_printable, printable};
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::data::{
    Column, CsvOptions, IdxOptions, LabelColumn, TargetColumns, Text, read_csv_from, read_idx,
};
use highwater_nn::io::{
    Array, Arrays, NpyLimits, Safetensors, SafetensorsLimits, read_npy_from, read_npz_from,
    read_safetensors_from, read_state_dict_from, write_npz_to, write_safetensors_to,
};
use highwater_nn::modules::{Linear, Module, Relu, Sequential};
use highwater_nn::optim::Sgd;
use highwater_tensor::{Device, Rng, Tensor};

/// Changes the color and the title of a terminal, returns to the start of the line, and reverses the text after it.
const EVIL: &str = "x\x1b[31m\x1b]0;t\x07\r\u{202e}\u{9b}2J\u{2066}\u{200b}é";

/// Checks that a message shows the escapes of a name and nothing else of it.
#[track_caller]
fn check(message: &impl std::fmt::Display) {
    let message = message.to_string();
    assert!(message.chars().all(|letter| is_printable(letter) || letter == '\n'), "{message:?}");
    assert!(message.contains(r"\u{1b}"), "no name in {message:?}");
    assert!(!message.contains(r"\\u"), "escaped twice: {message:?}");
}

/// [`check`] for an error, with its `Debug` form, which `main` prints.
#[track_caller]
fn refused<T, E: std::fmt::Display + std::fmt::Debug>(result: Result<T, E>) {
    let Err(error) = result else { panic!("the file is read") };
    check(&error);
    check(&format!("{error:?}"));
}

/// An archive whose only member is not an array. The member's name sets the title and the color of a terminal.
const ARCHIVE: &[u8] = include_bytes!("../cases/control_characters.npz");

fn one() -> Array {
    Array::from_slice(&[1.0f32], [1]).unwrap()
}

#[test]
fn arrays_of_numpy() {
    let limits = NpyLimits::default();
    refused(read_npz_from(Cursor::new(ARCHIVE), "escape-in-error.npz", &limits));
    refused(read_npz_from(Cursor::new(ARCHIVE), EVIL, &limits));
    // A name by itself is no problem.
    let mut archive = Vec::new();
    write_npz_to(&mut archive, &Arrays::from([(EVIL.to_owned(), one()), ("ok".to_owned(), one())])).unwrap();
    let loaded = read_npz_from(Cursor::new(&archive), "f", &limits).unwrap();
    assert!(loaded.arrays.contains_key(EVIL));
    // Element types, and text in place of an array.
    let header = |descr: &str| {
        let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}");
        [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), &[0; 8]].concat()
    };
    refused(read_npy_from(&header(&format!("[('{EVIL}', '<f4')]"))[..], "f", &limits));
    refused(read_npy_from(&header(&format!("'{EVIL}'"))[..], EVIL, &limits));
    refused(read_npy_from(&b"a,b\n"[..], EVIL, &limits));
    refused(read_npy_from(&b"\x93NUM"[..], EVIL, &limits));
}

#[test]
fn safetensors_and_checkpoints() {
    let limits = SafetensorsLimits::default();
    let file = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    let name = serde_json::Value::from(EVIL).to_string();
    for header in [
        format!("{{{name}: {{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 3]}}}}"),
        format!("{{{name}: {{\"dtype\": \"F32\", \"shape\": [9], \"data_offsets\": [0, 4]}}}}"),
        format!("{{{name}: {{\"dtype\": \"U4\", \"shape\": [1], \"data_offsets\": [0, 4]}}}}"),
        format!("{{{name}: {{\"dtype\": {name}, \"shape\": [1], \"data_offsets\": [0, 4]}}}}"),
        format!("{{{name}: 1}}"),
        format!("{{{name}: {{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}, {name}: 1}}"),
    ] {
        refused(read_safetensors_from(&file(&header)[..], EVIL, &limits));
    }
    refused(read_state_dict_from(Cursor::new(ARCHIVE), EVIL, &limits));

    // Parameters, metadata and random generators of a checkpoint.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let write = |arrays: Arrays, key: String, value: &str| {
        let metadata = [(key, value.to_owned())].into_iter().collect();
        let contents = Safetensors { arrays, metadata, ..Safetensors::default() };
        write_safetensors_to(std::fs::File::create(&path).unwrap(), &contents).unwrap();
        Checkpoint::load(&path)
    };
    for key in ["step", "optimizer", "loss_scaler", "rng/x"] {
        refused(write(Arrays::new(), format!("highwater.{key}"), &format!("{EVIL} ")));
    }
    refused(write(Arrays::new(), format!("highwater.{EVIL}"), ""));
    refused(write(Arrays::new(), format!("highwater.rng/{EVIL}"), "1"));
    let layer = Linear::new(&Device::cpu().unwrap(), 1, 1, &Rng::new(0)).unwrap();
    let saved = write(Arrays::from([(EVIL.to_owned(), one())]), "format".to_owned(), "pt").unwrap();
    refused(saved.restore(&layer));
    refused(saved.restore_partly(&layer));
    refused(saved.renamed(|name| Some(format!("optimizer/{name}"))).unwrap().save(&path));
}

#[test]
fn tables_and_other_data() {
    let parse = |text: &str, options: &CsvOptions| read_csv_from(text.as_bytes(), EVIL, options).map(drop);
    let header = CsvOptions::default().with_header(true);
    let column = |name: &str| Column::Name(name.to_owned());
    for (text, options) in [
        (format!("{EVIL},b\n,1\n"), header.clone()),
        (format!("{EVIL},b\n{EVIL},1\n"), header.clone()),
        (format!("a,b\n1,{EVIL}\n"), header.clone()),
        (format!("{EVIL},b\n1,2,3\n"), header.clone()),
        (format!("{EVIL},{EVIL}\n1,2\n"), header.clone().with_label(LabelColumn::Name(EVIL.to_owned()))),
        (format!("{EVIL},b\n1,2\n"), header.clone().with_label(LabelColumn::Name("c".to_owned()))),
        (format!("{EVIL},b\n1,2\n"), header.clone().with_ignored([column("c")])),
        (format!("{EVIL},b\n1,2\n"), header.clone().with_targets(TargetColumns::Names(vec!["c".to_owned()]))),
        (
            format!("1,{EVIL}\n"),
            CsvOptions::default().with_classes(LabelColumn::Last).with_class_names([EVIL.replace('x', "y")]),
        ),
        (format!("{EVIL}\n"), CsvOptions::default()),
        (String::new(), CsvOptions::default()),
    ] {
        refused(parse(&text, &options));
    }
    refused(read_idx(Path::new(EVIL), Path::new("labels"), &IdxOptions::default()));
    refused(Text::read_from(&[0xff][..], EVIL, 10));
    refused(Checkpoint::load(EVIL));
}

#[test]
fn names_of_models_and_their_parameters() {
    let (device, rng) = (Device::cpu().unwrap(), Rng::new(0));
    let model = Sequential::new().with(EVIL, Linear::new(&device, 2, 1, &rng).unwrap()).with("relu", Relu);
    let x = Tensor::ones(&device, [1, 3]).unwrap();
    refused(model.forward(&x));
    let parameters = model.parameters();
    let twice = [&parameters[..], &parameters[..]].concat();
    if let Err(error) = Sgd::new(twice, 0.1) {
        check(&error);
    }
    let text = printable(EVIL).to_string();
    assert!(text.starts_with(r"x\u{1b}[31m") && text.ends_with('é'));
}
