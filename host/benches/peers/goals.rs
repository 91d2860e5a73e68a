//! What dchost is to reach, as ratios of figures of one run: a goal is met if it is for the best pass and for the median one.

use crate::figures::{Figure, Figures};
use crate::question::Question::{self, AllWorkers, Barrier, OneByOne, OneWorker, Pull, Push, PushGrowth, Together};
use crate::{guest, host, limits, others};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What a figure is compared with.
#[derive(Clone, Copy)]
enum Bound {
    /// At most so many times the other's time; two bounds, must and stretch.
    Time(f64, f64),
    /// At least so many times the other's speed.
    Speed(f64, f64),
    /// At most so many bytes, in MiB; there is no other.
    MiB(f64, f64),
}

struct Goal {
    name: &'static str,
    own: (Question, &'static str),
    other: (Question, &'static str),
    bound: Bound,
}

fn goals() -> Vec<Goal> {
    use Bound::{MiB, Speed, Time};
    let mut goals = Vec::new();
    let mut add = |name, own, other, bound| goals.push(Goal { name, own, other, bound });
    let mut host = |name, question, other, bound| add(name, (question, host::NAME), (question, other), bound);
    for tasks in [2, 4, 8] {
        host("B1", Barrier(tasks), others::JAX, Time(0.15, 0.10));
    }
    host("B3", Barrier(8), others::STORE, Time(0.6, 0.45));
    host("B4", Barrier(8), others::MPI, Time(1.1, 0.8));
    for tasks in [2, 4, 8] {
        host("B5", Barrier(tasks), limits::NAME, Time(2.5, 1.6));
    }
    host("P1", Push(4 * KIB), others::TF, Time(0.10, 0.06));
    host("P2", Pull(4 * KIB), others::TF, Time(0.15, 0.10));
    host("P3", Push(MIB), others::TF, Speed(2.5, 3.5));
    host("P3", Push(MIB), limits::NAME, Speed(0.5, 0.7));
    host("P4", Pull(MIB), others::TF, Speed(1.7, 3.0));
    host("P4", Pull(MIB), limits::NAME, Speed(0.35, 0.6));
    host("P5", Push(16 * MIB), others::TF, Speed(1.3, 1.7));
    host("P5", Push(16 * MIB), limits::NAME, Speed(0.7, 0.9));
    host("P6", Pull(16 * MIB), others::TF, Speed(1.1, 1.8));
    host("P6", Pull(16 * MIB), limits::NAME, Speed(0.5, 0.8));
    host("P7", Push(64 * MIB), others::TF, Speed(1.7, 2.0));
    host("P7", Push(64 * MIB), limits::NAME, Speed(0.75, 0.95));
    host("P8", Pull(64 * MIB), others::TF, Speed(1.2, 1.7));
    host("P8", Pull(64 * MIB), limits::NAME, Speed(0.6, 0.9));
    host("P9", Push(64 * MIB), others::GLOO, Speed(1.0, 1.05));
    host("P9", Pull(64 * MIB), others::GLOO, Speed(0.6, 0.9));
    for tasks in [2, 4, 8] {
        add("B2", (Barrier(tasks), guest::NAME), (Barrier(tasks), others::JAX), Time(0.18, 0.12));
    }
    for size in [MIB, 16 * MIB, 64 * MIB] {
        add("P10", (AllWorkers(size), host::NAME), (OneWorker(size), host::NAME), Speed(0.9, 1.2));
    }
    let mut relaxed = |name, question, bound| add(name, (question, host::RELAXED), (question, limits::NAME), bound);
    relaxed("P5", Push(16 * MIB), Speed(0.7, 0.9));
    relaxed("P7", Push(64 * MIB), Speed(0.75, 0.95));
    add("P11", (Together, host::NAME), (OneByOne, host::NAME), Time(0.1, 0.04));
    for size in [MIB, 16 * MIB, 64 * MIB] {
        for question in [Push(size), Pull(size)] {
            add("P12", (question, guest::NAME), (question, host::NAME), Speed(0.7, 0.9));
        }
    }
    let growth = (PushGrowth(64 * MIB), host::NAME);
    add("S1", growth, growth, MiB(72.0, 66.0));
    goals.sort_by_key(|goal| (goal.name.chars().next(), goal.name[1..].parse::<u32>().unwrap_or(0)));
    goals
}

/// Prints the goals whose own side was measured.
pub(crate) fn print(figures: &Figures) {
    println!("\n## goals\n");
    println!("| | goal | must | stretch | best [median] | met? |\n|{}", " --- |".repeat(6));
    for goal in goals() {
        if let Some(own) = figures.get(goal.own.0, goal.own.1) {
            println!("{}", goal.row(own, figures.get(goal.other.0, goal.other.1)));
        }
    }
}

impl Goal {
    fn row(&self, own: Figure, other: Option<Figure>) -> String {
        let (question, lane) = self.own;
        let against = match self.other {
            (other, _) if other != question => format!("{other}"),
            (_, other) => other.to_owned(),
        };
        let what = match self.bound {
            Bound::Time(..) => format!("{question}, {lane}: time / {against}"),
            Bound::Speed(..) => format!("{question}, {lane}: speed / {against}"),
            Bound::MiB(..) => format!("{question}, {lane}: MiB"),
        };
        let (must, stretch, sign) = match self.bound {
            Bound::Time(must, stretch) | Bound::MiB(must, stretch) => (must, stretch, "<="),
            Bound::Speed(must, stretch) => (must, stretch, ">="),
        };
        let head = format!("| {} | {what} | {sign} {must} | {sign} {stretch} |", self.name);
        let Some(other) = other else { return format!("{head} - | - |") };
        let (best, median) = match self.bound {
            Bound::Time(..) => (own.best / other.best, own.median / other.median),
            Bound::Speed(..) => (other.best / own.best, other.median / own.median),
            Bound::MiB(..) => (own.best / MIB as f64, own.median / MIB as f64),
        };
        let holds = |bound: f64| match sign {
            "<=" => best <= bound && median <= bound,
            _ => best >= bound && median >= bound,
        };
        let met = if holds(stretch) {
            "stretch"
        } else if holds(must) {
            "yes"
        } else {
            "**no**"
        };
        format!("{head} {best:.3} [{median:.3}] | {met} |")
    }
}
