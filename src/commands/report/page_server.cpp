#include "commands/report/page_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace so {
namespace {

// A browser needs few connections; more are refused by the library.
constexpr unsigned most_connections = 32;
constexpr unsigned idle_seconds = 30;

bool is_own_name(const char* host) {
  if (host == nullptr) return false;
  const std::string_view name(host);
  const std::string_view bare = name.substr(0, name.rfind(':'));
  return bare == "127.0.0.1" || bare == "localhost";
}

int send(MHD_Connection* connection, unsigned status, const std::string& body, const char* type) {
  MHD_Response* response =
      MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  const int result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

}  // namespace

int answer_request(PageServer& server, MHD_Connection* connection, const char* path, const char* method) {
  constexpr const char* text = "text/plain; charset=utf-8";
  if (!is_own_name(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST)))
    return send(connection, MHD_HTTP_FORBIDDEN, "only as 127.0.0.1 or localhost\n", text);
  if (std::strcmp(method, "GET") != 0 && std::strcmp(method, "HEAD") != 0)
    return send(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n", text);
  const std::lock_guard lock(server.mutex_);
  if (std::strcmp(path, "/") == 0) return send(connection, MHD_HTTP_OK, server.page_, "text/html; charset=utf-8");
  if (std::strcmp(path, "/data.json") != 0) return send(connection, MHD_HTTP_NOT_FOUND, "there is only /\n", text);
  ++server.readers_;
  server.ever_read_ = true;
  return send(connection, MHD_HTTP_OK, server.data_, "application/json");
}

namespace {

MHD_Result handle(void* server, MHD_Connection* connection, const char* path, const char* method, const char*,
                  const char*, std::size_t* body, void** state) {
  // The first call comes with the headers alone; what a request carries beside them is thrown away.
  static char seen;
  if (*state == nullptr) {
    *state = &seen;
    return MHD_YES;
  }
  if (*body > 0) {
    *body = 0;
    return MHD_YES;
  }
  try {
    return static_cast<MHD_Result>(answer_request(*static_cast<PageServer*>(server), connection, path, method));
  } catch (...) {
    return MHD_NO;  // out of memory: the connection is closed, the run's process is another one
  }
}

}  // namespace

PageServer::PageServer(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  errno = 0;
  daemon_ = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, static_cast<std::uint16_t>(port), nullptr,
                             nullptr, handle, this, MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_CONNECTION_LIMIT,
                             most_connections, MHD_OPTION_CONNECTION_TIMEOUT, idle_seconds, MHD_OPTION_END);
  if (daemon_ == nullptr)
    fail("--port {}: cannot serve there ({}); give another one, or 0 for any that is free", port,
         errno != 0 ? std::generic_category().message(errno) : "no reason given");
  const MHD_DaemonInfo* info = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT);
  port_ = info != nullptr ? info->port : port;
}

PageServer::~PageServer() { MHD_stop_daemon(daemon_); }

void PageServer::publish(std::string page, std::string data) {
  const std::lock_guard lock(mutex_);
  page_ = std::move(page);
  data_ = std::move(data);
  readers_ = 0;
}

std::int64_t PageServer::readers() const {
  const std::lock_guard lock(mutex_);
  return readers_;
}

bool PageServer::ever_read() const {
  const std::lock_guard lock(mutex_);
  return ever_read_;
}

}  // namespace so
