//! What came out, and its tables.

use crate::host;
use crate::lane::median;
use crate::question::{MANY, Question, SIZES, SMALL, TASKS, WORKERS, size};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The figures of each lane for each question, one a pass.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    passes: BTreeMap<(Question, &'static str), Vec<f64>>,
    /// The lanes in the order in which they were asked.
    lanes: Vec<&'static str>,
}

/// Best and median pass: less is better.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

impl Figures {
    /// Adds the answers of a pass: their median. There are none where something is not installed.
    pub(crate) fn add(&mut self, lane: &'static str, question: Question, mut answers: Vec<f64>) {
        if !self.lanes.contains(&lane) {
            self.lanes.push(lane);
        }
        let passes = self.passes.entry((question, lane)).or_default();
        if !answers.is_empty() {
            passes.push(median(&mut answers));
        }
    }

    /// What a lane has for a question.
    pub(crate) fn get(&self, question: Question, lane: &'static str) -> Option<Figure> {
        let passes = self.passes.get(&(question, lane)).filter(|passes| !passes.is_empty())?;
        let best = passes.iter().copied().fold(f64::INFINITY, f64::min);
        Some(Figure { best, median: median(&mut passes.clone()) })
    }

    /// Every pass.
    pub(crate) fn raw(&self) -> String {
        let mut text = String::new();
        for ((question, lane), passes) in &self.passes {
            let passes: Vec<String> = passes.iter().map(|figure| format!("{figure:.2}")).collect();
            writeln!(text, "{question}\t{lane}\t{}", passes.join(" ")).expect("a string takes all");
        }
        text
    }

    /// A table for each part that was measured.
    pub(crate) fn print_tables(&self) {
        let micros = |_, figure: Figure| format!("{:.0} [{:.0}]", figure.best, figure.median);
        let columns = TASKS.map(|tasks| (format!("N={tasks}, us"), Question::Barrier(tasks)));
        self.print("barrier: a round of N processes", &columns, micros);
        for (title, question) in [
            ("push: adds `f32` to a variable on ps", Question::Push as fn(usize) -> Question),
            ("pull: reads a variable from ps", Question::Pull),
        ] {
            let unit = |bytes| if bytes < 1 << 20 { "us" } else { "GB/s" };
            let columns = SIZES.map(|bytes| (format!("{}, {}", size(bytes), unit(bytes)), question(bytes)));
            self.print(title, &columns, |question, figure| match question {
                Question::Push(bytes) | Question::Pull(bytes) if bytes >= 1 << 20 => speed(bytes, figure),
                question => micros(question, figure),
            });
        }
        let sizes = &SIZES[1..];
        let columns: Vec<_> = [(1, Question::OneWorker as fn(usize) -> Question), (WORKERS, Question::AllWorkers)]
            .into_iter()
            .flat_map(|(workers, question)| {
                sizes.iter().map(move |&bytes| (format!("{workers} x {}, GB/s", size(bytes)), question(bytes)))
            })
            .collect();
        self.print("workers: pushes of one or several to one variable, all together", &columns, |question, figure| {
            match question {
                Question::OneWorker(bytes) | Question::AllWorkers(bytes) => speed(bytes, figure),
                question => micros(question, figure),
            }
        });
        let columns = [
            (format!("{MANY} reads, us"), Question::OneByOne),
            (format!("one read of all {MANY}, us"), Question::Together),
        ];
        self.print(&format!("many: variables of {}", size(SMALL)), &columns, micros);
        let bytes = 64 << 20;
        let columns = [
            ("more than before the push, MiB".to_owned(), Question::PushGrowth(bytes)),
            ("more than an empty server, MiB".to_owned(), Question::PushPeak(bytes)),
        ];
        self.print("memory: the most that ps holds during a push of 64 MiB", &columns, |_, figure| {
            let mib = |bytes| bytes / f64::from(1 << 20);
            format!("{:.1} [{:.1}]", mib(figure.best), mib(figure.median))
        });
    }

    fn print(&self, title: &str, columns: &[(String, Question)], cell: impl Fn(Question, Figure) -> String) {
        let asked =
            |lane: &&&'static str| columns.iter().any(|&(_, question)| self.passes.contains_key(&(question, **lane)));
        let lanes: Vec<&'static str> = self.lanes.iter().filter(asked).copied().collect();
        if lanes.is_empty() {
            return;
        }
        println!("\n## {title}\n");
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        println!("| | {} |\n| --- |{}", names.join(" | "), " --- |".repeat(columns.len()));
        for lane in lanes {
            let cells: Vec<String> = columns
                .iter()
                .map(|&(_, question)| {
                    let Some(figure) = self.get(question, lane) else { return "-".to_owned() };
                    let text = cell(question, figure);
                    match self.get(question, host::NAME).filter(|_| lane != host::NAME) {
                        Some(host) => format!("{text} {:.2}x", host.best / figure.best),
                        None => text,
                    }
                })
                .collect();
            println!("| {lane} | {} |", cells.join(" | "));
        }
    }
}

fn speed(bytes: usize, figure: Figure) -> String {
    let speed = |micros: f64| bytes as f64 / micros / 1e3;
    format!("{:.2} [{:.2}]", speed(figure.best), speed(figure.median))
}
