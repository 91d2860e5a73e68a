//! The network: 64 pixels, a hidden layer of rectified units, ten digits. A burn module like any other.

use crate::data::{CLASSES, Images, PIXELS};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_nn::loss::CrossEntropyLossConfig;
use burn_nn::{Linear, LinearConfig, Relu};

/// Two linear layers. Its parameters are `hidden/weight`, `hidden/bias`, `output/weight` and `output/bias`.
#[derive(Module, Debug)]
pub(crate) struct Network {
    hidden: Linear,
    activation: Relu,
    output: Linear,
}

impl Network {
    /// With random weights.
    pub(crate) fn new(hidden: usize, device: &Device) -> Self {
        Network {
            hidden: LinearConfig::new(PIXELS, hidden).init(device),
            activation: Relu::new(),
            output: LinearConfig::new(hidden, CLASSES).init(device),
        }
    }

    /// The score of each digit, `[images, CLASSES]`.
    fn scores(&self, images: &Images, device: &Device) -> Tensor<2> {
        let pixels = TensorData::new(images.pixels.clone(), [images.len(), PIXELS]);
        let units = self.activation.forward(self.hidden.forward(Tensor::from_data(pixels, device)));
        self.output.forward(units)
    }

    /// The mean cross-entropy of the images.
    pub(crate) fn loss(&self, images: &Images, device: &Device) -> Tensor<1> {
        let labels = images.labels.iter().map(|&label| i32::from(label)).collect();
        let labels = Tensor::<1, Int>::from_data(TensorData::new::<i32, _>(labels, [images.len()]), device);
        CrossEntropyLossConfig::new().init(device).forward(self.scores(images, device), labels)
    }

    /// The part of the images whose digit has the highest score, from 0 to 1.
    pub(crate) fn accuracy(&self, images: &Images, device: &Device) -> f64 {
        let best = self.scores(images, device).argmax(1).into_data();
        let right = best.iter::<u8>().zip(&images.labels).filter(|(best, label)| best == *label).count();
        right as f64 / images.len() as f64
    }
}
