//! Saves: what all tasks hold, put together and written.

use super::manifest::{Entry, Manifest, Placed, tensor_name};
use super::reach::Reached;
use super::write::{Piece, check_place, finish, plan, write_files};
use super::{CheckpointError, CheckpointOptions};
use crate::client::variables::SaveStream;
use crate::cluster::{Task, TaskType};
use crate::coordinator::placement::spread;
use crate::files::OutputDir;
use crate::text::shown;
use crate::variables::{AUTO_SHARD_BYTES_MIN, Saved, Shard, SlotState, saved_order, shard_map, tensor_count};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Pieces that wait for the disk, of up to 256 KiB each.
const PIECES_QUEUED: usize = 8;

/// Bytes of zeros in one piece.
const ZEROS: &[u8] = &[0; 64 << 10];

/// What was saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaveReport {
    /// How many variables.
    pub variables: usize,
    /// How many of them have what an optimizer keeps beside them.
    pub with_slots: usize,
    /// Files, the manifest not counted.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// The tasks that were asked.
    pub tasks: Vec<Task>,
    /// Tasks that didn't answer and that nobody knows to run, with why: variables that lie on them are not in it.
    pub left_out: Vec<(Task, String)>,
    /// Variables in parts whose parts had different versions: somebody was changing them.
    pub mixed: Vec<String>,
}

/// Saves all variables of a container, with what optimizers keep beside them. Each task gives what it holds at one moment; the
/// directory appears when all is written, and replaces the checkpoint that was there.
///
/// Holds 2 MiB of values, and at most 16 MiB of each task that waits for its turn, however large they are. Writes on a thread of
/// its own. Has to be called within a tokio runtime.
///
/// # Errors
/// Every one of [`CheckpointError`]. What was in the directory stays then.
///
/// # Cancel safety
/// Dropping it gives the checkpoint up, and what was in the directory stays; once all of it has come, it
/// may still take the directory's name.
pub async fn save(options: &CheckpointOptions) -> Result<SaveReport, CheckpointError> {
    check_place(&options.dir)?;
    let reached = Reached::new(options).await?;
    let saved = save_reached(options, &reached).await;
    reached.close().await;
    saved
}

async fn save_reached(options: &CheckpointOptions, reached: &Reached) -> Result<SaveReport, CheckpointError> {
    let streams = reached
        .ask(reached.tasks.iter().map(|&task| (task, ())), |variables, ()| async move { variables.save().await });
    let mut streams: Vec<SaveStream> = streams.await?.into_iter().map(|(_, stream)| stream).collect();
    let ps: Vec<Task> = reached.cluster.tasks(TaskType::Ps).collect();
    let auto = |saved: &Saved| match (&*ps, reached.cluster.leader()) {
        ([], leader) => leader,
        (ps, _) => match *spread(&saved.variable.name, &saved.variable.ty, ps, AUTO_SHARD_BYTES_MIN) {
            [whole] => Some(Task::new(TaskType::Ps, whole)),
            _ => None,
        },
    };
    let lists: Vec<_> = streams.iter().map(|stream| (stream.task(), stream.saved())).collect();
    let all = put_together(&lists, auto).map_err(CheckpointError::Refused)?;
    if all.is_empty() {
        return Err(CheckpointError::Refused(format!(
            "container `{}` has no variables on the tasks that answer; see `dchost status`, or give --container",
            shown(&options.container)
        )));
    }
    let mut entries: Vec<Entry> = all.iter().map(|whole| whole.entry.clone()).collect();
    let plan = plan(&mut entries, options.file_bytes_max);

    let writing = |error| CheckpointError::writing(&options.dir, error);
    // Shared with the writer: it is removed when nobody writes any more.
    let dir = Arc::new(OutputDir::new(&options.dir).map_err(writing)?);
    let (sender, receiver) = mpsc::channel(PIECES_QUEUED);
    let shared = dir.clone();
    let writer = tokio::task::spawn_blocking(move || write_files(shared.path(), &plan, receiver));
    let sent = send(&mut streams, &all, &entries, sender).await;
    // Why the disk took no more says more than that it did.
    let written = writer.await.map_err(|error| writing(io::Error::other(error)))??;
    sent?;
    let announced = || writing(io::Error::other("fewer bytes have come than were announced"));
    let files = written.ok_or_else(announced)?;
    let dir = Arc::into_inner(dir).ok_or_else(announced)?;

    let report = SaveReport {
        variables: entries.len(),
        with_slots: entries.iter().filter(|entry| entry.slots.is_some()).count(),
        files: files.len(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        tasks: reached.tasks.clone(),
        left_out: reached.silent.clone(),
        mixed: all.iter().zip(&entries).filter(|(whole, _)| whole.mixed).map(|(_, entry)| entry.name.clone()).collect(),
    };
    let manifest = Manifest::new(&options.container, files, &entries);
    let place = options.dir.clone();
    let finished = tokio::task::spawn_blocking(move || finish(dir, &place, &manifest)).await;
    finished.map_err(|error| writing(io::Error::other(error)))??;
    Ok(report)
}

/// A variable, and where its parts come from.
struct Whole {
    entry: Entry,
    /// In order: which stream, the size, and how many tensors it sends.
    parts: Vec<Part>,
    mixed: bool,
}

#[derive(Clone, Copy)]
struct Part {
    stream: usize,
    bytes: usize,
    tensors: usize,
}

/// Makes variables of what the tasks hold, in the order in which all streams send them. `auto` tells where a whole variable would
/// lie by itself.
///
/// # Errors
/// In words, naming the variable: its parts don't make a whole, or two would have one tensor's name.
fn put_together(lists: &[(Task, &[Saved])], auto: impl Fn(&Saved) -> Option<Task>) -> Result<Vec<Whole>, String> {
    type Held<'a> = Vec<(usize, Task, &'a Saved)>;
    let mut held: BTreeMap<_, (Held<'_>, Held<'_>)> = BTreeMap::new();
    for (stream, (task, saved)) in lists.iter().enumerate() {
        for saved in *saved {
            let (whole, parts) = held.entry(saved_order(&saved.variable.ty, &saved.variable.name)).or_default();
            let kind = if saved.variable.shard.is_some() { parts } else { whole };
            kind.push((stream, *task, saved));
        }
    }
    let mut all = Vec::with_capacity(held.len());
    let mut named = HashSet::new();
    for ((_, name), (whole, parts)) in held {
        let several = whole.len() + usize::from(!parts.is_empty()) > 1;
        if !parts.is_empty() {
            all.push(joined(name, &parts)?);
        }
        for (stream, task, saved) in whole {
            let placed = if auto(saved) == Some(task) { Placed::Auto } else { Placed::On(task) };
            let tensor = tensor_name(name, (several && placed != Placed::Auto).then_some(task))?;
            let ty = saved.variable.ty.clone();
            let part = Part { stream, bytes: size(saved), tensors: tensor_count(saved.slots) };
            let entry = Entry {
                name: name.to_owned(),
                ty,
                version: saved.version,
                placed,
                slots: saved.slots,
                tensors: vec![(0, tensor)],
            };
            all.push(Whole { entry, parts: vec![part], mixed: false });
        }
    }
    for Whole { entry, .. } in &all {
        let tensor = &entry.tensors[0].1;
        if !named.insert(tensor.clone()) {
            return Err(format!(
                "two variables would both be saved as `{tensor}`; declare the one on a task of its own under another name"
            ));
        }
    }
    Ok(all)
}

fn size(saved: &Saved) -> usize {
    // The sizes of what a server sends were checked as it was read.
    saved.variable.ty.size_bytes().unwrap_or_default()
}

/// Makes a variable of its parts.
///
/// # Errors
/// In words: they are of several variables, overlap, or one is missing.
fn joined(name: &str, parts: &[(usize, Task, &Saved)]) -> Result<Whole, String> {
    let whole_type = parts[0].2.variable.whole_type();
    let map = parts.iter().find_map(|(_, _, saved)| saved.variable.shard.as_ref()).map(|shard| shard.ps.clone());
    let map = map.unwrap_or_default();
    let mut places: Vec<Option<(usize, &Saved)>> = vec![None; map.len()];
    let parts_text = || {
        let held: Vec<_> = parts
            .iter()
            .map(|(_, task, saved)| {
                let shard = saved.variable.shard.as_ref().map_or_else(String::new, Shard::to_string);
                format!("{shard} of {} on {task}", saved.variable.whole_type())
            })
            .collect();
        held.join(", ")
    };
    for (stream, _, saved) in parts {
        let shard = saved.variable.shard.as_ref();
        let expected = shard.filter(|shard| shard.ps == map && saved.variable.whole_type() == whole_type);
        let place = expected.and_then(|shard| places.get_mut(shard.index as usize)).filter(|place| place.is_none());
        let Some(place) = place else {
            return Err(format!("the parts of variable `{name}` don't belong together: {}", parts_text()));
        };
        *place = Some((*stream, *saved));
    }
    let expected = shard_map(&whole_type, &map);
    let mut ordered = Vec::with_capacity(places.len());
    for (place, (shard, ty)) in places.into_iter().zip(expected) {
        match place {
            Some((stream, saved)) if saved.variable.shard.as_ref() == Some(&shard) && saved.variable.ty == ty => {
                ordered.push((stream, saved));
            }
            Some(_) => return Err(format!("variable `{name}` is cut otherwise than here: {}", parts_text())),
            None => {
                return Err(format!(
                    "variable `{name}` lacks {shard}, which ps:{} had: {}; was that task started anew? Initialize it, or restore \
                     an earlier checkpoint",
                    map[shard.index as usize],
                    parts_text()
                ));
            }
        }
    }
    let slots = joined_slots(name, &ordered)?;
    let versions = || ordered.iter().map(|(_, saved)| saved.version);
    let version = versions().min().unwrap_or_default();
    let parts = ordered.iter().map(|(stream, saved)| Part {
        stream: *stream,
        bytes: size(saved),
        tensors: tensor_count(saved.slots),
    });
    let parts = parts.collect();
    let entry = Entry {
        name: name.to_owned(),
        ty: whole_type,
        version,
        placed: Placed::Sharded,
        slots,
        tensors: vec![(0, tensor_name(name, None)?)],
    };
    Ok(Whole { entry, parts, mixed: versions().any(|other| other != version) })
}

/// What an optimizer keeps beside the whole: of the fewest steps that a part has made. A part that has made none yet has zeros.
///
/// # Errors
/// In words: parts have the slots of several methods.
fn joined_slots(name: &str, parts: &[(usize, &Saved)]) -> Result<Option<SlotState>, String> {
    let mut joined: Option<SlotState> = None;
    for (_, saved) in parts {
        match (joined, saved.slots) {
            (Some(one), Some(other)) if one.layout != other.layout => {
                let (one, other) = (one.layout.method, other.layout.method);
                return Err(format!(
                    "parts of variable `{name}` have the slots of `{one}`, others those of `{other}`: it is being initialized; \
                     save it when that is done"
                ));
            }
            (_, None) => {}
            (None, slots) => joined = slots,
            (Some(one), Some(other)) => joined = Some(SlotState { step: one.step.min(other.step), ..one }),
        }
    }
    let all = parts.iter().all(|(_, saved)| saved.slots.is_some());
    Ok(joined.map(|slots| if all { slots } else { SlotState { step: 0, ..slots } }))
}

/// Sends all tensors to the writer, part by part as they come. Ends early where the writer takes no more.
///
/// # Errors
/// [`CheckpointError::Task`]: a stream broke.
async fn send(
    streams: &mut [SaveStream],
    all: &[Whole],
    entries: &[Entry],
    writer: mpsc::Sender<Piece>,
) -> Result<(), CheckpointError> {
    for (whole, entry) in all.iter().zip(entries) {
        for (tensor, (file, _)) in entry.tensors.iter().enumerate() {
            for part in &whole.parts {
                let mut left = part.bytes;
                while left > 0 {
                    let data = if tensor < part.tensors {
                        streams[part.stream].next().await?
                    } else {
                        Bytes::from_static(ZEROS).slice(..left.min(ZEROS.len()))
                    };
                    left = left.saturating_sub(data.len());
                    if writer.send((*file, data)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}
