//! `wasi:sockets`: wasmtime-wasi's, but nobody binds or listens, and sockets are counted.
//!
//! Addresses are checked in `network`, by a function that wasmtime-wasi calls. It can't tell a bind that a guest asks for from
//! the one that the system does before it connects; the functions here can.

use super::network::Network;
use crate::runtime::state::State;
use std::net::SocketAddr;
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::network::{
    self, ErrorCode, HostNetwork, IpAddressFamily, IpSocketAddress, Network as NetworkHandle,
};
use wasmtime_wasi::p2::bindings::sockets::{tcp, tcp_create_socket, udp, udp_create_socket};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, SocketError, SocketResult, TcpSocket, UdpSocket,
};
use wasmtime_wasi::sockets::WasiSocketsCtxView;

/// Sockets open at once in one run. Each is a file descriptor of the process, which needs some itself; 1024 are usual.
const SOCKETS_MAX: usize = 128;

/// Marks the view for the linker.
struct Sockets;

impl HasData for Sockets {
    type Data<'a> = SocketsView<'a>;
}

/// What the functions here work on.
struct SocketsView<'a> {
    wasi: WasiSocketsCtxView<'a>,
    network: &'a Network,
}

fn view(state: &mut State) -> SocketsView<'_> {
    let State { wasi, table, network, .. } = state;
    SocketsView { wasi: WasiSocketsCtxView { ctx: wasi.sockets(), table }, network }
}

/// Links the interfaces.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    tcp::add_to_linker::<State, Sockets>(linker, view)?;
    udp::add_to_linker::<State, Sockets>(linker, view)?;
    tcp_create_socket::add_to_linker::<State, Sockets>(linker, view)?;
    udp_create_socket::add_to_linker::<State, Sockets>(linker, view)
}

impl SocketsView<'_> {
    /// Fails where a run has as many sockets as it may have.
    fn room_for_one(&mut self) -> SocketResult<()> {
        // A socket stays in the table as long as its streams do.
        let open =
            self.wasi.table.iter_mut().filter(|entry| entry.is::<TcpSocket>() || entry.is::<UdpSocket>()).count();
        if open < SOCKETS_MAX {
            return Ok(());
        }
        self.network.denials.tell(format!(
            "the guest has {SOCKETS_MAX} sockets open, the most that one run may have; it gets no more until it closes some"
        ));
        Err(ErrorCode::NewSocketLimit.into())
    }
}

/// Hands functions of a trait to wasmtime-wasi's implementation.
macro_rules! pass_on {
    ($trait:path, $this:ty { $(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)* }) => {$(
        fn $name(&mut self, this: Resource<$this>, $($arg: $ty),*) -> $out {
            <WasiSocketsCtxView<'_> as $trait>::$name(&mut self.wasi, this, $($arg),*)
        }
    )*};
}

/// Hands over what both kinds of sockets have.
macro_rules! pass_on_shared {
    ($trait:path, $this:ty) => {
        pass_on!($trait, $this {
            fn finish_bind() -> SocketResult<()>;
            fn local_address() -> SocketResult<IpSocketAddress>;
            fn remote_address() -> SocketResult<IpSocketAddress>;
            fn address_family() -> wasmtime::Result<IpAddressFamily>;
            fn receive_buffer_size() -> SocketResult<u64>;
            fn set_receive_buffer_size(value: u64) -> SocketResult<()>;
            fn send_buffer_size() -> SocketResult<u64>;
            fn set_send_buffer_size(value: u64) -> SocketResult<()>;
            fn subscribe() -> wasmtime::Result<Resource<DynPollable>>;
            fn drop() -> wasmtime::Result<()>;
        });
    };
}

impl network::Host for SocketsView<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        self.wasi.network_error_code(error)
    }
}

impl HostNetwork for SocketsView<'_> {
    fn drop(&mut self, network: Resource<NetworkHandle>) -> wasmtime::Result<()> {
        HostNetwork::drop(&mut self.wasi, network)
    }
}

impl tcp_create_socket::Host for SocketsView<'_> {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.room_for_one()?;
        self.wasi.create_tcp_socket(family)
    }
}

impl udp_create_socket::Host for SocketsView<'_> {
    async fn create_udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        self.room_for_one()?;
        self.wasi.create_udp_socket(family).await
    }
}

impl tcp::Host for SocketsView<'_> {}

impl tcp::HostTcpSocket for SocketsView<'_> {
    async fn start_bind(
        &mut self,
        _this: Resource<TcpSocket>,
        _network: Resource<NetworkHandle>,
        address: IpSocketAddress,
    ) -> SocketResult<()> {
        self.network.refuse_serving(address.into());
        Err(ErrorCode::AccessDenied.into())
    }

    async fn start_listen(&mut self, this: Resource<TcpSocket>) -> SocketResult<()> {
        let address = match tcp::HostTcpSocket::address_family(&mut self.wasi, this).map_err(SocketError::trap)? {
            IpAddressFamily::Ipv4 => SocketAddr::from(([0; 4], 0)),
            IpAddressFamily::Ipv6 => SocketAddr::from(([0_u16; 8], 0)),
        };
        self.network.refuse_serving(address);
        Err(ErrorCode::AccessDenied.into())
    }

    fn finish_connect(
        &mut self,
        this: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<DynInputStream>, Resource<DynOutputStream>)> {
        self.wasi.finish_connect(this)
    }

    fn accept(
        &mut self,
        this: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<TcpSocket>, Resource<DynInputStream>, Resource<DynOutputStream>)> {
        self.wasi.accept(this)
    }

    pass_on!(tcp::HostTcpSocket, TcpSocket {
        fn start_connect(network: Resource<NetworkHandle>, address: IpSocketAddress) -> SocketResult<()>;
        fn finish_listen() -> SocketResult<()>;
        fn is_listening() -> wasmtime::Result<bool>;
        fn set_listen_backlog_size(value: u64) -> SocketResult<()>;
        fn keep_alive_enabled() -> SocketResult<bool>;
        fn set_keep_alive_enabled(value: bool) -> SocketResult<()>;
        fn keep_alive_idle_time() -> SocketResult<u64>;
        fn set_keep_alive_idle_time(value: u64) -> SocketResult<()>;
        fn keep_alive_interval() -> SocketResult<u64>;
        fn set_keep_alive_interval(value: u64) -> SocketResult<()>;
        fn keep_alive_count() -> SocketResult<u32>;
        fn set_keep_alive_count(value: u32) -> SocketResult<()>;
        fn hop_limit() -> SocketResult<u8>;
        fn set_hop_limit(value: u8) -> SocketResult<()>;
        fn shutdown(how: tcp::ShutdownType) -> SocketResult<()>;
    });
    pass_on_shared!(tcp::HostTcpSocket, TcpSocket);
}

impl udp::Host for SocketsView<'_> {}

impl udp::HostUdpSocket for SocketsView<'_> {
    async fn start_bind(
        &mut self,
        this: Resource<UdpSocket>,
        network: Resource<NetworkHandle>,
        address: IpSocketAddress,
    ) -> SocketResult<()> {
        let address = self.network.udp_address(address.into());
        udp::HostUdpSocket::start_bind(&mut self.wasi, this, network, address.into()).await
    }

    async fn stream(
        &mut self,
        this: Resource<UdpSocket>,
        remote: Option<IpSocketAddress>,
    ) -> SocketResult<(Resource<udp::IncomingDatagramStream>, Resource<udp::OutgoingDatagramStream>)> {
        self.wasi.stream(this, remote).await
    }

    pass_on!(udp::HostUdpSocket, UdpSocket {
        fn unicast_hop_limit() -> SocketResult<u8>;
        fn set_unicast_hop_limit(value: u8) -> SocketResult<()>;
    });
    pass_on_shared!(udp::HostUdpSocket, UdpSocket);
}

impl udp::HostIncomingDatagramStream for SocketsView<'_> {
    fn receive(
        &mut self,
        this: Resource<udp::IncomingDatagramStream>,
        datagrams_max: u64,
    ) -> SocketResult<Vec<udp::IncomingDatagram>> {
        self.wasi.receive(this, datagrams_max)
    }

    fn subscribe(&mut self, this: Resource<udp::IncomingDatagramStream>) -> wasmtime::Result<Resource<DynPollable>> {
        udp::HostIncomingDatagramStream::subscribe(&mut self.wasi, this)
    }

    fn drop(&mut self, this: Resource<udp::IncomingDatagramStream>) -> wasmtime::Result<()> {
        udp::HostIncomingDatagramStream::drop(&mut self.wasi, this)
    }
}

impl udp::HostOutgoingDatagramStream for SocketsView<'_> {
    fn check_send(&mut self, this: Resource<udp::OutgoingDatagramStream>) -> SocketResult<u64> {
        self.wasi.check_send(this)
    }

    fn send(
        &mut self,
        this: Resource<udp::OutgoingDatagramStream>,
        datagrams: Vec<udp::OutgoingDatagram>,
    ) -> SocketResult<u64> {
        self.wasi.send(this, datagrams)
    }

    fn subscribe(&mut self, this: Resource<udp::OutgoingDatagramStream>) -> wasmtime::Result<Resource<DynPollable>> {
        udp::HostOutgoingDatagramStream::subscribe(&mut self.wasi, this)
    }

    async fn drop(&mut self, this: Resource<udp::OutgoingDatagramStream>) -> wasmtime::Result<()> {
        udp::HostOutgoingDatagramStream::drop(&mut self.wasi, this).await
    }
}
