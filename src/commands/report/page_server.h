// Serves the page of runs that go on, to browsers of this machine. libmicrohttpd speaks HTTP: a server of our own on a
// user's machine would be a hole.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

struct MHD_Daemon;
struct MHD_Connection;

namespace so {

// An HTTP server on 127.0.0.1, with a thread of its own: "/" is the page, "/data.json" its data. Only GET and HEAD are
// answered, and only under the names 127.0.0.1 and localhost, so that a foreign page cannot have a browser read them
// under a name of its own. publish() may be called from any thread.
class PageServer {
 public:
  // 0: a free port. Throws Error, naming --port, if it cannot be had.
  explicit PageServer(int port);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  int port() const { return port_; }
  void publish(std::string page, std::string data);
  // How often data was asked for since it was last published.
  std::int64_t readers() const;
  bool ever_read() const;

 private:
  friend int answer_request(PageServer& server, MHD_Connection* connection, const char* path, const char* method);
  mutable std::mutex mutex_;
  std::string page_, data_;
  std::int64_t readers_ = 0;
  bool ever_read_ = false;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
};

}  // namespace so
