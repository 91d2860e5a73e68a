//! The matrix products of the component, natively: kernel, size and rounds as arguments, nanoseconds as answer.

#[path = "../kernels.rs"]
mod kernels;

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, n, rounds] = args.as_slice() else {
        return Err("usage: native KERNEL SIZE ROUNDS".to_owned());
    };
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("`{text}`: {error}"));
    let times = kernels::measure(kernel, number(n)?, number(rounds)?)?;
    let words: Vec<String> = times.iter().map(u128::to_string).collect();
    println!("{}", words.join(" "));
    Ok(())
}
