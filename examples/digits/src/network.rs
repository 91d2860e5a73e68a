//! The network: 64 pixels, one hidden layer of `tanh` units, ten digits; softmax and cross-entropy. Forward and backward.
//!
//! Pure numbers, no cluster. Every matrix is stored so that its rows are as long as the hidden layer: then all the work
//! is [`add_scaled`] and [`dot`] over such rows, which `kernels` unrolls for SIMD.

mod kernels;

use crate::data::{CLASSES, Images, PIXELS};
use crate::random::Random;
use kernels::{add_scaled, dot};

/// Weights and biases, or a gradient with respect to them. Row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    /// From pixels to hidden units, `[PIXELS, hidden]`.
    pub(crate) hidden_weights: Vec<f32>,
    /// `[hidden]`.
    pub(crate) hidden_biases: Vec<f32>,
    /// From hidden units to digits, `[CLASSES, hidden]`.
    pub(crate) output_weights: Vec<f32>,
    /// `[CLASSES]`.
    pub(crate) output_biases: Vec<f32>,
}

impl Parameters {
    /// Names and shapes, in the order of [`Parameters::tensors`].
    pub(crate) fn shapes(hidden: usize) -> [(&'static str, Vec<usize>); 4] {
        [
            ("hidden/weights", vec![PIXELS, hidden]),
            ("hidden/biases", vec![hidden]),
            ("output/weights", vec![CLASSES, hidden]),
            ("output/biases", vec![CLASSES]),
        ]
    }

    /// All zero.
    pub(crate) fn zeros(hidden: usize) -> Self {
        Parameters {
            hidden_weights: vec![0.0; PIXELS * hidden],
            hidden_biases: vec![0.0; hidden],
            output_weights: vec![0.0; CLASSES * hidden],
            output_biases: vec![0.0; CLASSES],
        }
    }

    /// Random weights whose size fits the number of inputs and outputs; zero biases.
    ///
    /// # Source
    /// Glorot, Bengio: "Understanding the difficulty of training deep feedforward neural networks", 2010, equation 16.
    pub(crate) fn random(hidden: usize, random: &mut Random) -> Self {
        let mut parameters = Parameters::zeros(hidden);
        let mut fill = |weights: &mut [f32], inputs: usize, outputs: usize| {
            let limit = (6.0 / (inputs + outputs) as f32).sqrt();
            weights.fill_with(|| random.uniform(limit));
        };
        fill(&mut parameters.hidden_weights, PIXELS, hidden);
        fill(&mut parameters.output_weights, hidden, CLASSES);
        parameters
    }

    /// The four tensors.
    pub(crate) fn tensors(&self) -> [&[f32]; 4] {
        [&self.hidden_weights, &self.hidden_biases, &self.output_weights, &self.output_biases]
    }

    /// The four tensors, to be changed.
    pub(crate) fn tensors_mut(&mut self) -> [&mut Vec<f32>; 4] {
        [&mut self.hidden_weights, &mut self.hidden_biases, &mut self.output_weights, &mut self.output_biases]
    }

    /// Multiplies every number: a gradient becomes a step.
    pub(crate) fn scale(&mut self, factor: f32) {
        for value in self.tensors_mut().into_iter().flatten() {
            *value *= factor;
        }
    }

    fn hidden(&self) -> usize {
        self.hidden_biases.len()
    }

    /// The hidden units of one image.
    fn activate(&self, image: &[f32], units: &mut [f32]) {
        units.copy_from_slice(&self.hidden_biases);
        for (&pixel, weights) in image.iter().zip(self.hidden_weights.chunks_exact(self.hidden())) {
            add_scaled(units, pixel, weights);
        }
        for unit in units {
            *unit = unit.tanh();
        }
    }

    /// The score of each digit.
    fn scores(&self, units: &[f32]) -> [f32; CLASSES] {
        let mut scores = [0.0; CLASSES];
        let rows = self.output_weights.chunks_exact(self.hidden());
        for ((score, weights), bias) in scores.iter_mut().zip(rows).zip(&self.output_biases) {
            *score = dot(units, weights) + bias;
        }
        scores
    }

    /// The mean cross-entropy of the images, and its gradient with respect to the parameters.
    pub(crate) fn loss_and_gradient(&self, images: &Images) -> (f32, Parameters) {
        let hidden = self.hidden();
        let share = 1.0 / images.len() as f32;
        let mut gradient = Parameters::zeros(hidden);
        let mut loss = 0.0;
        let mut units = vec![0.0; hidden];
        let mut delta = vec![0.0; hidden];
        for (image, &label) in images.pixels.chunks_exact(PIXELS).zip(&images.labels) {
            self.activate(image, &mut units);
            let mut errors = softmax(self.scores(&units));
            // A probability that rounds to zero would make the loss infinite and hide how training goes.
            loss -= errors[usize::from(label)].max(f32::MIN_POSITIVE).ln();
            errors[usize::from(label)] -= 1.0;

            delta.fill(0.0);
            let rows = self.output_weights.chunks_exact(hidden).zip(gradient.output_weights.chunks_exact_mut(hidden));
            for ((error, (weights, changes)), bias) in errors.iter().zip(rows).zip(&mut gradient.output_biases) {
                let error = error * share;
                *bias += error;
                add_scaled(changes, error, &units);
                add_scaled(&mut delta, error, weights);
            }
            for ((delta, unit), bias) in delta.iter_mut().zip(&units).zip(&mut gradient.hidden_biases) {
                *delta *= 1.0 - unit * unit;
                *bias += *delta;
            }
            for (&pixel, changes) in image.iter().zip(gradient.hidden_weights.chunks_exact_mut(hidden)) {
                add_scaled(changes, pixel, &delta);
            }
        }
        (loss * share, gradient)
    }

    /// The part of the images whose digit has the highest score, from 0 to 1.
    pub(crate) fn accuracy(&self, images: &Images) -> f64 {
        let mut units = vec![0.0; self.hidden()];
        let mut right = 0_u32;
        for (image, &label) in images.pixels.chunks_exact(PIXELS).zip(&images.labels) {
            self.activate(image, &mut units);
            let scores = self.scores(&units);
            let best = (0..CLASSES).fold(0, |best, digit| if scores[digit] > scores[best] { digit } else { best });
            right += u32::from(best == usize::from(label));
        }
        f64::from(right) / images.len() as f64
    }
}

/// Probabilities of scores; the highest is taken off first, so that no power overflows.
fn softmax(scores: [f32; CLASSES]) -> [f32; CLASSES] {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.map(|score| (score - highest).exp());
    let sum: f32 = powers.iter().sum();
    powers.map(|power| power / sum)
}

#[cfg(test)]
mod tests {
    use super::{Parameters, softmax};
    use crate::data::{CLASSES, Images, PIXELS};
    use crate::random::Random;

    /// Images of noise: the gradient does not care.
    fn noise(count: usize, random: &mut Random) -> Images {
        Images {
            pixels: (0..count * PIXELS).map(|_| random.uniform(1.0).max(0.0)).collect(),
            labels: (0..count).map(|index| (index % CLASSES) as u8).collect(),
        }
    }

    /// Compares the gradient with the slope of the loss between two close points, along random directions and for single
    /// parameters. In f32 the loss has 24 bits, so that a slope over a step of 0.01 is good to about three digits.
    #[test]
    fn gradient_is_the_slope_of_the_loss() {
        let mut random = Random::new(11, 0);
        for hidden in [3, 40] {
            let images = noise(7, &mut random);
            let parameters = Parameters::random(hidden, &mut random);
            let (_, gradient) = parameters.loss_and_gradient(&images);
            for tensor in 0..4 {
                let len = gradient.tensors()[tensor].len();
                let direction: Vec<f32> = (0..len).map(|_| random.uniform(1.0)).collect();
                let norm = direction.iter().map(|value| value * value).sum::<f32>().sqrt();
                let direction: Vec<f32> = direction.iter().map(|value| value / norm).collect();
                let step = 0.01_f32;
                let moved = |scale: f32| {
                    let mut moved = parameters.clone();
                    for (value, change) in moved.tensors_mut()[tensor].iter_mut().zip(&direction) {
                        *value += scale * change;
                    }
                    f64::from(moved.loss_and_gradient(&images).0)
                };
                let slope = (moved(step) - moved(-step)) / f64::from(2.0 * step);
                let along: f64 = gradient.tensors()[tensor].iter().zip(&direction).map(|(a, b)| f64::from(a * b)).sum();
                assert!(
                    (slope - along).abs() < 1e-3 + 0.01 * along.abs(),
                    "hidden {hidden}, tensor {tensor}: slope {slope}, gradient {along}"
                );
                assert!(gradient.tensors()[tensor].iter().any(|value| value.abs() > 1e-4), "tensor {tensor} is flat");
            }
        }
    }

    #[test]
    fn gradient_of_a_batch_is_the_mean_of_its_images() {
        let mut random = Random::new(5, 0);
        let images = noise(4, &mut random);
        let parameters = Parameters::random(8, &mut random);
        let (loss, whole) = parameters.loss_and_gradient(&images);
        let single: Vec<_> = (0..4).map(|index| parameters.loss_and_gradient(&images.batch(&[index]))).collect();
        let mean = single.iter().map(|(loss, _)| loss).sum::<f32>() / 4.0;
        assert!((loss - mean).abs() < 1e-5, "{loss} {mean}");
        for (index, value) in whole.hidden_weights.iter().enumerate() {
            let mean = single.iter().map(|(_, gradient)| gradient.hidden_weights[index]).sum::<f32>() / 4.0;
            assert!((value - mean).abs() < 1e-6, "{index}: {value} {mean}");
        }
    }

    #[test]
    fn softmax_stands_large_scores() {
        let mut scores = [-1e30; CLASSES];
        scores[3] = 1e30;
        let probabilities = softmax(scores);
        assert_eq!(probabilities[3], 1.0);
        assert_eq!(probabilities.iter().sum::<f32>(), 1.0);
    }

    #[test]
    fn accuracy_counts_the_highest_score() {
        let mut parameters = Parameters::zeros(2);
        parameters.output_biases[6] = 1.0;
        let images = Images { pixels: vec![0.0; 4 * PIXELS], labels: vec![6, 1, 6, 6] };
        assert_eq!(parameters.accuracy(&images), 0.75);
    }
}
