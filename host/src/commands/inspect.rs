//! `dchost inspect`: what a file is and whether it would run, without running it.

use super::print;
use crate::cli::{self, InspectFormat};
use crate::config::{self, Environment};
use crate::coordinator::resolve::values::digest_text;
use crate::exit::Exit;
use crate::runtime::{Engine, FileKind, Inspection, Item};
use crate::text::shown;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Prints what a file is to stdout, as text or as one JSON object.
///
/// Exits with 0 if the file can be read and told.
///
/// # Errors
/// The settings are refused; [`LoadError`](crate::runtime::LoadError): the file can't be read, or with `--check`, a run with the same settings would refuse
/// it; stdout can't be written.
pub fn run(args: &cli::Inspect, environment: &Environment) -> anyhow::Result<Exit> {
    let mut inspection = match inspect(args, environment) {
        Ok(inspection) => inspection,
        Err(error) => {
            if args.format == InspectFormat::Json {
                let file = args.file.display().to_string();
                print(&format!("{}\n", json!({"file": file, "kind": null, "error": format!("{error:#}")})))?;
            }
            return Err(error);
        }
    };
    let refusal = inspection.refusal.take().map(anyhow::Error::from);
    // As a run says it.
    let why = refusal.as_ref().map(|error| format!("{error:#}"));
    match args.format {
        InspectFormat::Json => print(&format!("{}\n", object(&args.file, &inspection, why.as_deref())))?,
        InspectFormat::Text => print(&text(&args.file, &inspection, why.as_deref()))?,
    }
    match refusal {
        Some(error) if args.check => Err(error),
        _ => Ok(Exit::Done),
    }
}

fn inspect(args: &cli::Inspect, environment: &Environment) -> anyhow::Result<Inspection> {
    let settings = config::inspect(args, environment)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let engine = Engine::new(settings.engine())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    Ok(runtime.block_on(engine.inspect(&args.file, &settings.limits.of_guest()))?)
}

fn object(file: &Path, inspection: &Inspection, refusal: Option<&str>) -> Value {
    let items = |items: &[Item]| -> Vec<_> {
        items
            .iter()
            .map(|item| json!({"name": item.name, "verdict": item.verdict.as_str(), "note": item.note}))
            .collect()
    };
    let surface = inspection.surface.as_ref();
    let producers: Vec<_> = inspection
        .producers
        .iter()
        .map(|producer| json!({"field": producer.field, "name": producer.name, "version": producer.version}))
        .collect();
    json!({
        "file": file.display().to_string(),
        "kind": inspection.kind.as_str(),
        "what": what(&inspection.kind),
        "size_bytes": inspection.size_bytes,
        "digest": digest_text(&inspection.digest),
        "core_modules": inspection.core_modules,
        "memory_bytes": inspection.memory_bytes,
        "names": inspection.names,
        "debug_info": inspection.debug_info,
        "producers": producers,
        "world": surface.and_then(|surface| surface.world).map(|world| world.as_str()),
        "imports": surface.map(|surface| items(&surface.imports)),
        "exports": surface.map(|surface| items(&surface.exports)),
        "unlisted": surface.map_or(0, |surface| surface.more),
        "refusal": refusal,
        "error": null,
    })
}

/// What the kind alone doesn't say.
fn what(kind: &FileKind) -> Option<&str> {
    match kind {
        FileKind::Damaged { reason } => Some(reason),
        FileKind::Other { what } => Some(what),
        FileKind::Component | FileKind::CoreModule | FileKind::Precompiled => None,
    }
}

fn text(file: &Path, inspection: &Inspection, refusal: Option<&str>) -> String {
    let kind = match &inspection.kind {
        FileKind::Component => "a component".to_owned(),
        FileKind::CoreModule => "a core module, which dchost doesn't run".to_owned(),
        FileKind::Precompiled => "precompiled code".to_owned(),
        FileKind::Damaged { reason } => format!("damaged wasm: {reason}"),
        FileKind::Other { what } => format!("no wasm but {what}"),
    };
    let mut text = format!("{} is {kind}\n", shown(&file.display().to_string()));
    let mut row = |name: &str, value: String| {
        // Writing to a string can't fail, here and below.
        let _ = writeln!(text, "{name:<10}{value}");
    };
    row("size", format!("{} bytes", inspection.size_bytes));
    row("digest", digest_text(&inspection.digest));
    if matches!(inspection.kind, FileKind::Component | FileKind::CoreModule) {
        if let Some(surface) = &inspection.surface {
            row("world", surface.world.map_or("none of dchost's", |world| world.as_str()).to_owned());
        }
        let kib = inspection.memory_bytes >> 10;
        row("memory", format!("{kib} KiB declared, in {} core modules", inspection.core_modules));
        let yes = |set: bool| if set { "yes" } else { "no" };
        row("names", format!("{}, debug information: {}", yes(inspection.names), yes(inspection.debug_info)));
        for producer in &inspection.producers {
            row("made by", format!("{} {} {}", producer.field, producer.name, producer.version).trim_end().to_owned());
        }
    }
    if let Some(surface) = &inspection.surface {
        for (title, items) in [("imports", &surface.imports), ("exports", &surface.exports)] {
            let width = items.iter().map(|item| item.name.chars().count().min(60)).max().unwrap_or(0);
            let _ = writeln!(text, "\n{title}{}", if items.is_empty() { "  none" } else { "" });
            for item in items {
                let note = item.note.as_deref().map(|note| format!("  {note}")).unwrap_or_default();
                let _ = writeln!(text, "  {:width$}  {:<15}{note}", item.name, item.verdict.as_str());
            }
        }
        if surface.more > 0 {
            let _ = writeln!(text, "  and {} more", surface.more);
        }
    }
    // No blanks at the ends of lines, whatever a row holds.
    let mut text: String = text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
    match refusal {
        Some(refusal) => {
            let _ = writeln!(text, "\na run refuses it: {refusal}");
        }
        None => text.push_str("\na run accepts it\n"),
    }
    text
}
