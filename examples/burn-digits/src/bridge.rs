//! The parameters of any burn module as variables of the cluster.

use crate::invalid;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use dchost_guest::{Change, Optimizer, Result, Value, Variable, WorkerContext};

/// A variable for each parameter of a module that learns, named by its path: `hidden/weight`, `blocks/0/bias`.
///
/// What gets no gradient (frozen weights, running means) stays each task's own. A module is always walked in the order of its
/// fields; variables, values and gradients are in that order. Elements are `f32`.
pub(crate) struct Parameters {
    variables: Vec<Variable<f32>>,
}

impl Parameters {
    /// Declares the variables of a module that is on a device with autodiff; reaches no other task.
    pub(crate) fn declare(ctx: &WorkerContext, module: &impl Module) -> Result<Self> {
        let mut names = Names::default();
        module.visit(&mut names);
        let declared = names.found.into_iter().map(|(name, shape)| ctx.variable(name).shape(shape).declare());
        Ok(Parameters { variables: declared.collect::<Result<_>>()? })
    }

    /// Sets the variables to the module's own parameters: the chief's business.
    pub(crate) fn initialize(&self, ctx: &WorkerContext, module: &impl Module) -> Result<()> {
        let values = floats(module, None);
        ctx.initialize(self.variables.iter().zip(&values).map(|(variable, values)| Change::assign(variable, values)))
    }

    /// Waits until the chief has done so.
    pub(crate) fn wait_initialized(&self, ctx: &WorkerContext) -> Result<()> {
        ctx.wait_initialized(&self.variables, None)
    }

    /// The values as they are now.
    pub(crate) fn read(&self, ctx: &WorkerContext) -> Result<Vec<Value<f32>>> {
        ctx.read(&self.variables)
    }

    /// Has the tasks that hold the variables make a step with the module's gradients, and returns the values after it. A
    /// parameter that `backward` didn't reach has a gradient of zeros.
    pub(crate) fn step(
        &self,
        ctx: &WorkerContext,
        optimizer: &Optimizer,
        module: &impl Module,
        gradients: &Gradients,
    ) -> Result<Vec<Value<f32>>> {
        let gradients = floats(module, Some(gradients));
        let pairs: Vec<_> = self.variables.iter().zip(&gradients).collect();
        ctx.apply_gradients_and_read(optimizer, pairs)
    }
}

/// The module with these values in place of its own: those of [`Parameters::read`] or [`Parameters::step`].
///
/// # Errors
/// `invalid-argument`: the values are those of another module.
pub(crate) fn load<M: Module>(module: M, values: &[Value<f32>]) -> Result<M> {
    let mut load = Load { values: values.iter(), fits: true };
    let module = module.map(&mut load);
    if load.fits && load.values.len() == 0 {
        Ok(module)
    } else {
        Err(invalid("the values are those of another module"))
    }
}

fn floats(module: &impl Module, gradients: Option<&Gradients>) -> Vec<Vec<f32>> {
    let mut floats = Floats { gradients, found: Vec::new() };
    module.visit(&mut floats);
    floats.found
}

/// Names and shapes of the parameters that learn.
#[derive(Default)]
struct Names {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if tensor.is_require_grad() {
            self.found.push((self.path.join("/"), tensor.dims().to_vec()));
        }
    }
}

/// Values of the parameters that learn, or their gradients.
struct Floats<'g> {
    gradients: Option<&'g Gradients>,
    found: Vec<Vec<f32>>,
}

impl ModuleVisitor for Floats<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if !tensor.is_require_grad() {
            return;
        }
        let wanted = match self.gradients {
            None => tensor.inner(),
            Some(gradients) => {
                tensor.grad(gradients).unwrap_or_else(|| Tensor::zeros(tensor.dims(), &tensor.device().inner()))
            }
        };
        self.found.push(vec(wanted));
    }
}

/// The elements of a tensor, row-major.
pub(crate) fn vec<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().expect("every float becomes an f32")
}

/// Puts values in place of the parameters that learn.
struct Load<'v> {
    values: std::slice::Iter<'v, Value<f32>>,
    fits: bool,
}

impl ModuleMapper for Load<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let old = param.val();
        if !old.is_require_grad() {
            return param;
        }
        match self.values.next().filter(|value| value.shape() == old.dims()) {
            Some(value) => {
                let data = TensorData::new(value.to_vec(), old.shape());
                param.map(|_| Tensor::from_data(data, &old.device()).require_grad())
            }
            None => {
                self.fits = false;
                param
            }
        }
    }
}
